// Runs tests' launches in the interpreter: its findings, and other modules than the shipped ones.
#pragma once

#include <string_view>

#include "tests/ptx/machine.h"

namespace sortition::testing::ptx {

// Makes later launches of that module's kernels run on `machine`; the caller reads its reports. Null: they run on the
// shipped module, and its reports fail the running test.
void UseMachine(std::string_view module, Machine* machine);

// Returns the machine that runs the launches of the module's kernels.
Machine& MachineOf(std::string_view module);

}  // namespace sortition::testing::ptx
