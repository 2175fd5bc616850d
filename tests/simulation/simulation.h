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
  std::string failure;  // empty: every token of every text was the one of the run without faults
  Tally tally;
  absl::Duration elapsed;        // virtual
  std::vector<std::string> log;  // if asked for
  bool ok() const { return failure.empty(); }
};

std::vector<Fault> FaultsOf(uint64_t seed, Plant plant);
Outcome RunWorld(uint64_t seed, Plant plant, const std::vector<Fault>& faults, bool with_log = false);

// Leaves out faults as long as the run still fails. Returns the rest.
std::vector<Fault> Shrink(uint64_t seed, Plant plant, std::vector<Fault> faults);

// Describes a failure for people: the faults, the failure, and the messages of the failing run from its last fault on.
std::string DescribeFailure(uint64_t seed, Plant plant, const std::vector<Fault>& faults);

}  // namespace sortition::simulation
