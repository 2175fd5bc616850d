// The HTTP endpoint that Prometheus scrapes.
#pragma once

#include <prometheus/exposer.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "monitoring/metrics.h"

namespace sortition::monitoring {

// Serves /metrics from construction to destruction. Its threads and connections are few and bounded.
class Exposition {
 public:
  // `address` is IPV4:PORT or [IPV6]:PORT, port 0 = any free one; empty = serve nothing. `observer`, `engine` and what
  // `streams` refers to are not owned and outlive the exposition. The error names the address that could not be bound.
  static absl::StatusOr<std::unique_ptr<Exposition>> Start(const std::string& address, PrometheusObserver* observer,
                                                           service::Engine* engine, std::function<uint32_t()> streams);

  // With the port that was chosen; empty if nothing is served.
  const std::string& address() const { return address_; }

 private:
  Exposition() = default;

  std::string address_;
  std::shared_ptr<prometheus::Registry> registry_;
  std::shared_ptr<LiveMetrics> live_;
  std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace sortition::monitoring
