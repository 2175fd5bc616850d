// A row that does not lie in one piece, or not where it may be looked at twice.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

#include "kernels/byte_segment.h"

namespace sortition::kernels::cpu {

// Elements as they came from a wire, in pieces that begin and end anywhere, or in memory that another process may
// change meanwhile; on their way to memory where neither is so. Whatever passes over a row first copies them as it
// goes, and looks at the copy alone from then on. FindPlainFirst copies what it looks at again.
struct RowCopy {
  std::span<const ByteSegment> segments;  // none: the elements are where they are looked at
  std::byte* to = nullptr;
};

// Goes through the bytes of such a row, forwards.
class RowCopier {
 public:
  // The row has segments.
  explicit RowCopier(const RowCopy& copy) : to_(copy.to), segment_(copy.segments.data()) {}

  // The bytes of the row from `begin` on as far as they lie in one segment. There is such a byte, and `begin` is not
  // before that of an earlier call.
  std::span<const std::byte> Run(size_t begin) {
    while (begin - passed_ >= segment_->size) {
      passed_ += segment_->size;
      ++segment_;
    }
    const size_t at = begin - passed_;
    return {segment_->data + at, segment_->size - at};
  }

  // Has these bytes come.
  void Copy(size_t begin, size_t bytes) {
    while (bytes != 0) {
      const std::span<const std::byte> run = Run(begin);
      const size_t part = std::min(run.size(), bytes);
      std::memcpy(to_ + begin, run.data(), part);
      begin += part;
      bytes -= part;
    }
  }

  // Where they come to.
  std::byte* to() const { return to_; }

 private:
  std::byte* const to_;
  const ByteSegment* segment_;
  size_t passed_ = 0;  // bytes of the row before the segment
};

}  // namespace sortition::kernels::cpu
