// Instructions that each lane computes alone, and those at which lanes meet, by name.
#pragma once

#include <cstdint>
#include <string_view>

#include "tests/ptx/program.h"

namespace sortition::testing::ptx {

struct Operation {
  std::string_view name;
  // Widths of the operands in order, each one in braces too: p predicate, h 16 bits, w 32, d 64.
  std::string_view shape;
  Apply apply;
  int8_t mask_operand = -1;  // index of the operand that is the mask of meeting lanes; -1: none
};

// Returns the operation with this name and shape, or null. In `shape`, '*' is an immediate, which fits any width.
const Operation* FindOperation(std::string_view name, std::string_view shape);

// True if there is an operation of this name, for some operands.
bool IsOperation(std::string_view name);

}  // namespace sortition::testing::ptx
