// The interpreter in the emulator's place: its findings, and runs of modules that do not ship.
#pragma once

#include <string_view>

#include "tests/ptx/machine.h"

namespace sortition::testing::ptx {

// Makes later launches of that module's kernels run on `machine`, whose reports are the caller's. Null: they run on the
// module that ships, whose reports fail the running test.
void UseMachine(std::string_view module, Machine* machine);

// Returns the machine that runs the launches of the module's kernels.
Machine& MachineOf(std::string_view module);

}  // namespace sortition::testing::ptx
