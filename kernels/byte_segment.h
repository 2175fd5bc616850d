// A run of bytes in memory. One or more runs make a tensor.
#pragma once

#include <cstddef>

namespace sortition::kernels {

struct ByteSegment {
  const std::byte* data = nullptr;
  size_t size = 0;
};

}  // namespace sortition::kernels
