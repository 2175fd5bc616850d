// The shadow of a range of global memory.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/ptx/shadow.h"

namespace sortition::testing::ptx {

struct RangeShadow {
  RangeShadow(uint64_t bytes, bool is_written) : written(bytes, is_written ? 1 : 0), cells(bytes) {}
  std::vector<uint8_t> written;  // by byte: 1 once it is written
  ByteShadows cells;
};

}  // namespace sortition::testing::ptx
