// A picture of a load: latency by percentile, and events by interval.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/bench/histogram.h"

namespace sortition::bench {

// One interval of a load.
struct LoadInterval {
  double end_seconds = 0;  // since the load's start
  double tokens_per_second = 0;
  uint64_t p99 = 0;  // nanoseconds, over the interval's steps; 0: none was measured
};

// A curve of latency.
struct LatencyCurve {
  std::string name;  // how it is measured
  Histogram latency;
};

// Returns a complete picture (SVG 1.1). At most 600 points of `intervals` are drawn; a point is the mean rate and the
// longest time of those that it stands for.
std::string PlotLoad(const std::string& title, const std::vector<LatencyCurve>& curves,
                     const std::vector<LoadInterval>& intervals);

}  // namespace sortition::bench
