// The functions of block verification (SPECULATION.md, "Blocks"), for hosts. A weight of the target is compared with
// the drafter's at the same scale, q S, after it is multiplied by the survival: the probability, in units of 2^-32,
// with which the drafts before the position are accepted.
//
// Every function here is pure, thread-safe and gives the same bits on every machine.
#pragma once

#include "kernels/law/row_law.h"

namespace sortition::law {

// Word 0 of this use is the seed of the draw from the residual; word 1 decides whether the block may end at the
// position.
inline constexpr u32 kBlockTag = 0x42u;

// Returns floor(weight * survival / 2^32).
inline u64 Survived(u64 weight, u64 survival) { return u64(static_cast<unsigned __int128>(weight) * survival >> 32); }

// Returns the weight of a token in the draw at the position where the block ends.
inline u64 BlockResidual(u64 weight, u64 draft_weight, u64 survival) {
  return Residual(Survived(weight, survival), draft_weight);
}

// Returns the part of a token's weight that the drafter and the target share.
inline u64 Shared(u64 weight, u64 draft_weight, u64 survival) {
  return std::min(Survived(weight, survival), draft_weight);
}

// Returns true if the block may end at the position, over a uniform word. `sum` adds the kept tokens' weights, `shared`
// their Shared.
inline bool MayEnd(u64 word, u64 sum, u64 shared, u64 survival) {
  const u64 residual = Survived(sum, survival) - shared;
  return Less64(MulHigh64(word, residual + (sum - Survived(sum, survival))), residual);
}

// Returns true if the block may end after its last draft.
inline bool MayEndAfter(u64 word, u64 survival) { return word >> 32 < survival; }

// Returns the survival of the next position, from the weights of the draft: min(1, survival * weight / draft weight),
// cut to its unit.
inline u64 NextSurvival(u64 survival, u64 weight, u64 draft_weight) {
  if (weight == 0 || survival == 0) return 0;
  const auto product = static_cast<unsigned __int128>(weight) * survival;
  if (u64(product >> 32) >= draft_weight) return kernels::RowRequest::kCertainSurvival;
  return u64(product / draft_weight);
}

// Returns the words of a position's use of noise.
inline PhiloxWords BlockWords(const DrawKey& key) { return NoiseWords(0, kBlockTag, key); }

}  // namespace sortition::law
