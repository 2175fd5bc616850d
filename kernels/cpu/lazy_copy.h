// Copies single groups of a row, when they are first read.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/row_copy.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

// A row's maxima are read where the row lies. A group is copied when it is first looked at, and afterwards only its
// copy is read. By then another process may have changed it. If its largest key is not the one that was read, or a NaN
// has come, the copy gets one token of that key and masked ones instead, so that kernels find what the maxima promise.
// Not thread-safe.
struct LazyCopy {
  static constexpr uint32_t kLeastGroups = 64;  // of the row: more than the first pass takes at a time

  // `words`: room for one bit a group, all clear.
  LazyCopy(const RowCopy& copy, uint64_t* words) : copier(copy), copied(words) {}

  bool Has(uint32_t group) const { return (copied[group / 64] >> (group % 64) & 1) != 0; }
  void Mark(uint32_t group) { copied[group / 64] |= uint64_t{1} << (group % 64); }

  RowCopier copier;
  uint64_t* const copied;
  const uint32_t* maxima = nullptr;  // of the row as sent; ReadRow sets them before a group is read
  bool has_failed = false;           // the answer has no meaning: the row has to be copied whole
};

// Writes a group with the largest key `key` in place of one that has changed.
void ReplaceChanged(DType dtype, uint32_t key, std::byte* elements, LazyCopy* lazy);

}  // namespace sortition::kernels::cpu
