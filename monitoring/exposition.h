// The metrics port serves /metrics for Prometheus, /health for proxies that check replicas over HTTP (503 from the
// first stop signal on), and / for people. /slow has the slow steps, as JSON for that page.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "monitoring/http_server.h"
#include "monitoring/metrics.h"
#include "service/engine.h"
#include "service/log/slow_steps.h"

namespace sortition::monitoring {

// Serves from construction to destruction. Its connections are few and bounded (http_server.h).
class Exposition {
 public:
  // Nothing is owned. All of it, and the state that `draining` reads, outlives the exposition.
  struct Sources {
    PrometheusObserver* observer;
    service::Engine* engine;
    std::function<bool()> draining;
    std::string certificate;              // as for LiveMetrics
    const server::SlowSteps* slow_steps;  // null: none are listed
  };

  // `address` as for HttpServer::Start; empty = nothing is served. The error names the address.
  static absl::StatusOr<std::unique_ptr<Exposition>> Start(const std::string& address, const Sources& sources);

  // The bound address with its port; empty if nothing is served.
  const std::string& address() const { return address_; }

 private:
  Exposition() = default;

  std::string address_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace sortition::monitoring
