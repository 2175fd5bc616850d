// Finds the segments of a byte range.
#include "service/wire/payload_view.h"

#include <algorithm>
#include <cstring>

#include "kernels/check.h"

namespace sortition::service {

PayloadView::PayloadView(const Payload& payload) : payload_(payload) {
  starts_.reserve(payload.segments.size());
  uint64_t start = 0;
  for (const devices::ByteSegment& segment : payload.segments) {
    starts_.push_back(start);
    start += segment.size;
  }
  SORTITION_CHECK(start == payload.size);
}

absl::InlinedVector<devices::ByteSegment, 2> PayloadView::Slice(uint64_t offset, uint64_t size) const {
  SORTITION_CHECK(offset <= payload_.size && size <= payload_.size - offset);
  absl::InlinedVector<devices::ByteSegment, 2> slices;
  size_t index = static_cast<size_t>(std::ranges::upper_bound(starts_, offset) - starts_.begin()) - 1;
  while (size > 0) {
    const devices::ByteSegment& segment = payload_.segments[index];
    const uint64_t skip = offset - starts_[index];
    const uint64_t run = std::min<uint64_t>(size, segment.size - skip);
    slices.push_back({segment.data + skip, run});
    offset += run;
    size -= run;
    ++index;
  }
  return slices;
}

void PayloadView::Copy(uint64_t offset, uint64_t size, void* to) const {
  std::byte* out = static_cast<std::byte*>(to);
  for (const devices::ByteSegment& slice : Slice(offset, size)) {
    std::memcpy(out, slice.data, slice.size);
    out += slice.size;
  }
}

}  // namespace sortition::service
