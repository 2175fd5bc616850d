// Instructions that each lane computes alone, and those at which lanes meet, by name.
#pragma once

#include <cstdint>
#include <string_view>

#include "tests/ptx/program.h"

namespace sortition::testing::ptx {

struct Operation {
  std::string_view name;
  // Widths of its operands in order, those in braces one by one: p predicate, h 16 bits, w 32, d 64.
  std::string_view shape;
  Apply apply;
  int8_t mask_operand = -1;  // where there is one, lanes meet
};

// Returns the operation of this name whose shape fits, in which '*' is an immediate and fits any width; null if there
// is none.
const Operation* FindOperation(std::string_view name, std::string_view shape);

// True if there is an operation of this name, for some operands.
bool IsOperation(std::string_view name);

}  // namespace sortition::testing::ptx
