// Copies of rows that lie in several pieces, or in memory that another process may change.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

#include "kernels/byte_segment.h"

namespace sortition::kernels::cpu {

// A row's elements before and after the copy. Before, they lie in pieces that begin and end anywhere, or in memory that
// another process may change. The first pass over the row copies them, and from then on only the copy is read.
// FindPlainFirst copies only the elements that are read again.
struct RowCopy {
  std::span<const ByteSegment> segments;  // none: the elements need no copy
  std::byte* to = nullptr;
};

// Copies the bytes of such a row, forwards. Not thread-safe.
class RowCopier {
 public:
  // The row has segments.
  explicit RowCopier(const RowCopy& copy) : to_(copy.to), segment_(copy.segments.data()) {}

  // Returns the bytes of the row from `begin` to the end of their segment: at least one. `begin` is not below that of
  // an earlier call.
  std::span<const std::byte> Run(size_t begin) {
    while (begin - passed_ >= segment_->size) {
      passed_ += segment_->size;
      ++segment_;
    }
    const size_t at = begin - passed_;
    return {segment_->data + at, segment_->size - at};
  }

  // Copies these bytes.
  void Copy(size_t begin, size_t bytes) {
    while (bytes != 0) {
      const std::span<const std::byte> run = Run(begin);
      const size_t part = std::min(run.size(), bytes);
      std::memcpy(to_ + begin, run.data(), part);
      begin += part;
      bytes -= part;
    }
  }

  // The start of the copy.
  std::byte* to() const { return to_; }

 private:
  std::byte* const to_;
  const ByteSegment* segment_;
  size_t passed_ = 0;  // bytes of the row before the segment
};

}  // namespace sortition::kernels::cpu
