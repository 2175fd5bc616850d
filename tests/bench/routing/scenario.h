// Batches and devices with known costs, to compare the router with the best choice in hindsight.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "service/route/router.h"

namespace sortition::bench {

// True cost of a device, which the router has to find out.
struct Truth {
  service::Costs costs;
  uint32_t memory = devices::kHostMemory;
  double slow_from = 1e9;  // seconds after the start
  double slow_until = 1e9;
  double slow_factor = 1;
};

// Batches that all wait from the start, and start in their order.
struct Scenario {
  std::string name;
  std::vector<Truth> devices;
  std::vector<service::Router::BatchSummary> batches;
};

// A pure function of the seed.
std::vector<Scenario> Scenarios(uint64_t seed);

// When a batch ends that a device starts at `start`, in seconds.
double EndOf(const Truth& device, const service::Router::BatchSummary& batch, double start);

// Returns the time until the last batch is done under the router's choices. The router begins without knowledge of the
// devices.
double RoutedMakespan(const Scenario& scenario);

}  // namespace sortition::bench
