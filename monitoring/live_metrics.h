// What is true at the moment of a scrape: queue, sequences, limits, versions and the process itself.
#pragma once

#include <prometheus/collectable.h>

#include <functional>
#include <string>
#include <vector>

#include "service/engine.h"

namespace sortition::monitoring {

// Thread-safe; blocks for no longer than the engine's own readings.
class LiveMetrics final : public prometheus::Collectable {
 public:
  // `engine` is not owned and outlives this. `draining` says whether a stop signal has come; called by any thread.
  LiveMetrics(service::Engine* engine, std::function<bool()> draining);
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  service::Engine& engine_;
  const std::function<bool()> draining_;
  const double started_;  // seconds since 1970
};

}  // namespace sortition::monitoring
