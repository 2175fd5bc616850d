// The interpreter in the emulator's place: what it has found, and other modules than those that ship.
#pragma once

#include <string_view>

#include "tests/ptx/machine.h"

namespace sortition::testing::ptx {

// Runs launches of that module's kernels on `machine` from now on, and leaves its reports to the caller. Null: on the
// module that ships, whose reports fail the test that runs.
void UseMachine(std::string_view module, Machine* machine);

// The machine that runs the launches of the module's kernels.
Machine& MachineOf(std::string_view module);

}  // namespace sortition::testing::ptx
