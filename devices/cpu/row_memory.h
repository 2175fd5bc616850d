// A thread's own memory for rows that arrive in pieces.
#pragma once

#include <cstddef>
#include <vector>

#include "devices/device.h"

namespace sortition::devices {

// Grows to the largest row it has gathered. Not thread-safe.
class RowMemory {
 public:
  // Room for so many bytes, from the start of a cache line, valid until the next call; it may hold anything.
  std::byte* Reserve(size_t bytes);

  // The row's first `bytes` bytes in one piece: its only segment where it has one that cannot change, otherwise a copy
  // that starts at a cache line and is valid until the next call. Asserts that the segments hold that many.
  const std::byte* Gather(const DeviceRow& row, size_t bytes);

 private:
  struct alignas(64) CacheLine {
    std::byte bytes[64];
  };
  std::vector<CacheLine> lines_;
};

}  // namespace sortition::devices
