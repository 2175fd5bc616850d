// Copies of rows that lie in several pieces, or in memory that another process may change.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

#include "kernels/byte_segment.h"

namespace sortition::kernels::cpu {

// A row's elements before and after the copy. Before, they lie in pieces that begin and end anywhere, or in memory that
// another process may change. Decisions read the copy only. The first pass over the row copies all of it, or groups are
// copied when they are first looked at (lazy_copy.h). FindPlainFirst copies only what it reads again.
struct RowCopy {
  std::span<const ByteSegment> segments;  // none: the elements need no copy
  std::byte* to = nullptr;
};

// Finds and copies the bytes of such a row. Fastest in ascending order. Not thread-safe.
class RowCopier {
 public:
  // The row has segments.
  explicit RowCopier(const RowCopy& copy)
      : to_(copy.to), segments_(copy.segments.data()), segment_(copy.segments.data()) {}

  // Returns the bytes of the row from `begin` to the end of their segment: at least one.
  std::span<const std::byte> Run(size_t begin) {
    if (begin < passed_) {
      segment_ = segments_;
      passed_ = 0;
    }
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

  // Returns these bytes where they lie, if that is in one segment, or else their copy.
  const std::byte* InOnePiece(size_t begin, size_t bytes) {
    const std::span<const std::byte> run = Run(begin);
    if (run.size() >= bytes) return run.data();
    Copy(begin, bytes);
    return to_ + begin;
  }

  // The start of the copy.
  std::byte* to() const { return to_; }

 private:
  std::byte* const to_;
  const ByteSegment* const segments_;
  const ByteSegment* segment_;
  size_t passed_ = 0;  // bytes of the row before the segment
};

}  // namespace sortition::kernels::cpu
