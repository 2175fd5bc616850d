// The modules that ship, as text and decoded.
#pragma once

#include <string>
#include <string_view>

#include "tests/ptx/program.h"

namespace sortition::testing::ptx {

// Returns the PTX of this module for the architecture that the build makes. Throws if the file cannot be read.
std::string ModuleText(std::string_view name);

// Returns the decoded module, which a process decodes once. Thread-safe.
const Program& Module(std::string_view name);

}  // namespace sortition::testing::ptx
