// A row as one of its distributions sees it, in groups of 64 consecutive tokens with the largest key of each.
//
// The logits are never rewritten. Masks and patches lie over them and are applied to each group that is looked at, so
// their cost follows the tokens they name. Group maxima tell which groups need to be looked at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cpu/candidate.h"
#include "kernels/law/law.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

struct Row {
  // The tensor, at any alignment, without a NaN; its last group stands alone, filled up with -Inf.
  const std::byte* elements;
  const std::byte* last_group;
  DType dtype;
  uint32_t groups;
  // What is looked at after the row: ReadMaxima asks for it on its way.
  std::span<const std::byte> read_next[2];

  // One key per group, 0 where nothing is live; then zeros to a multiple of 64. Of a masked row some may be larger than
  // the group's largest key: not those of the groups that come first, as many as the request's filters look for, and
  // none that is not below theirs.
  const uint32_t* maxima;
  uint32_t max_key;  // the largest of them

  // Null where every token shows the logit that was sent. Otherwise one word a group, one bit a token: clear where a
  // token is masked, or is one of `patched`.
  const uint64_t* sent_words;
  std::span<const Candidate> patched;  // live tokens whose logit is not the one that was sent; token ascending
};

inline uint32_t GroupsOf(uint32_t vocabulary) { return (vocabulary + law::kGroupSize - 1) / law::kGroupSize; }

inline const std::byte* ElementsOfGroup(const Row& row, uint32_t group) {
  if (group + 1 == row.groups) return row.last_group;
  return row.elements + size_t{group} * law::kGroupSize * ElementBytes(row.dtype);
}

}  // namespace sortition::kernels::cpu
