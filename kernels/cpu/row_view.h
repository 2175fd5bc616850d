// A row as one of its distributions sees it, in groups of 64 consecutive tokens with the largest key of each.
//
// The logits are never rewritten. Masks and edits lie over them and are applied to each group that is looked at, so
// their cost follows the tokens they name. Group maxima tell which groups need to be looked at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cpu/candidate.h"
#include "kernels/cpu/lazy_copy.h"
#include "kernels/cpu/row_copy.h"
#include "kernels/cpu/spread.h"
#include "kernels/law/law.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

struct RowView {
  // The tensor, at any alignment, without a NaN; its last group stands alone, filled up with -Inf.
  const std::byte* elements;
  const std::byte* last_group;
  DType dtype;
  uint32_t groups;
  // Copies the groups to `elements`. A last group that is filled up has been copied already.
  RowCopy copy;
  LazyCopy* lazy = nullptr;  // null if the whole row is copied, or nothing is
  // Memory that is read after the row: ReadMaxima prefetches it.
  std::span<const std::byte> read_next[2];
  bool sums_logits = false;  // ReadMaxima may also sum the logits, for `spread`
  SentSpread spread = {};    // valid if sent_words is null

  // Two keys per group, 0 where nothing is live; then zeros to a multiple of 64. No token of the group has a key above
  // its `maxima`. Where its `reached` is not 0, some live token has a key of `reached` or more. No key is above
  // max_key. Until a chain masks a head, a group whose `maxima` is max_key has a token with it.
  //
  // In a masked row they are one array. There the `reached` of a group with a masked token may be too large if it is
  // below `reached_from`. A row that knows only its listed tokens has neither array.
  const uint32_t* maxima;
  const uint32_t* reached;
  uint32_t max_key;  // the largest live token's

  // Null if every token has its sent logit, or only the listed ones are known. Otherwise one word a group, one bit a
  // token: clear if the token is masked or in `edited`.
  const uint64_t* sent_words;
  std::span<const Candidate> edited;  // live tokens with a changed logit; token ascending

  // The tokens with a key >= listed_floor, edited ones included, if they were listed.
  std::span<const Candidate> listed = {};
  uint32_t listed_floor = ~0u;

  uint32_t reached_from = 0;  // 0 if every `reached` is right

  bool IsOnlyListed() const { return maxima == nullptr; }
};

// Returns -Inf in the element type.
inline uint32_t MinusInfinity(DType dtype) {
  if (dtype == DType::kF32) return 0xff800000u;
  return dtype == DType::kF16 ? 0xfc00u : 0xff80u;
}

inline uint32_t GroupsOf(uint32_t vocabulary) { return (vocabulary + law::kGroupSize - 1) / law::kGroupSize; }

// Returns the number of groups that lie at `elements`.
inline uint32_t GroupsInPlace(const RowView& row) {
  const size_t last = size_t{row.groups - 1} * law::kGroupSize * ElementBytes(row.dtype);
  return row.last_group == row.elements + last ? row.groups : row.groups - 1;
}

// The address of the group's elements. A lazy copy may not have them yet.
inline const std::byte* PlaceOfGroup(const RowView& row, uint32_t group) {
  if (group + 1 == row.groups) return row.last_group;
  return row.elements + size_t{group} * law::kGroupSize * ElementBytes(row.dtype);
}

}  // namespace sortition::kernels::cpu
