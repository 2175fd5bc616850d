// One world from its beginning until every text is complete: a function of its seed and its faults.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "tests/simulation/fault.h"
#include "tests/simulation/world.h"

namespace sortition::simulation {

struct Outcome {
  std::string failure;  // empty: every text has the same tokens as without faults
  Tally tally;
  absl::Duration elapsed;        // virtual
  std::vector<std::string> log;  // empty unless requested
  bool ok() const { return failure.empty(); }
};

std::vector<Fault> FaultsOf(uint64_t seed, Plant plant);
Outcome RunWorld(uint64_t seed, Plant plant, const std::vector<Fault>& faults, bool with_log = false);

// Leaves out faults as long as the run still fails. Returns the rest.
std::vector<Fault> Shrink(uint64_t seed, Plant plant, std::vector<Fault> faults);

// Describes a failure for people: the faults, the failure, and the failing run's messages since its last fault.
std::string DescribeFailure(uint64_t seed, Plant plant, const std::vector<Fault>& faults);

}  // namespace sortition::simulation
