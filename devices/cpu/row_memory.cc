// Gathering of segments.
#include "devices/cpu/row_memory.h"

#include <algorithm>
#include <cstring>

#include "kernels/check.h"

namespace sortition::devices {

std::byte* RowMemory::Reserve(size_t bytes) {
  const size_t lines = (bytes + sizeof(CacheLine) - 1) / sizeof(CacheLine);
  if (lines_.size() < lines) lines_.resize(lines);
  return lines_.data()->bytes;
}

const std::byte* RowMemory::Gather(const DeviceRow& row, size_t bytes) {
  if (row.segments.size() == 1 && !row.may_change) {
    SORTITION_CHECK(row.segments[0].size >= bytes);
    return row.segments[0].data;
  }
  std::byte* const begin = Reserve(bytes);
  size_t gathered = 0;
  for (const ByteSegment& segment : row.segments) {
    const size_t part = std::min(segment.size, bytes - gathered);
    if (part != 0) std::memcpy(begin + gathered, segment.data, part);
    gathered += part;
  }
  SORTITION_CHECK(gathered == bytes);
  return begin;
}

}  // namespace sortition::devices
