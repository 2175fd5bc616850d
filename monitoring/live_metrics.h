// Metrics that are read at each scrape: queue, sequences, limits, versions and the process.
#pragma once

#include <prometheus/collectable.h>

#include <functional>
#include <string>
#include <vector>

#include "service/engine.h"

namespace sortition::monitoring {

// Thread-safe; blocks no longer than the engine's getters.
class LiveMetrics final : public prometheus::Collectable {
 public:
  // `engine` is not owned and outlives this. `draining` returns true after a stop signal; any thread calls it.
  // `certificate` is the path of the server's certificate; empty = there is no TLS.
  LiveMetrics(service::Engine* engine, std::function<bool()> draining, std::string certificate);
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  service::Engine& engine_;
  const std::function<bool()> draining_;
  const std::string certificate_;
  const double started_;  // seconds since 1970
};

}  // namespace sortition::monitoring
