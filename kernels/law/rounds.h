// The functions of rejection in rounds (SPECULATION.md, "Rounds"), for hosts: drafts of one position are tested in
// turn, each against the target's weights after the rounds before it.
//
// Every function here is pure, thread-safe and gives the same bits on every machine.
#pragma once

#include <bit>

#include "kernels/law/row_law.h"

namespace sortition::law {

// Returns the words of round `round`, counted from 0. Word 1 decides the round's test. Word 0 of round 0 seeds the draw
// that replaces the drafts. A row with one draft uses round 0's words.
inline PhiloxWords RoundWords(u32 round, const DrawKey& key) { return NoiseWords(round, kVerifyTag, key); }

// Returns the biased exponent of a drafter's probability; 0 where the probability counts as 0.
inline u32 ProbabilityExponent(u32 q) { return q >> 23 & 255u; }

// Returns floor(q * 2^(170 - largest)) < 2^44 for a probability with an exponent of at most `largest`.
inline u64 LeftUnits(u32 q, u32 largest) {
  const u32 exponent = ProbabilityExponent(q);
  if (exponent == 0 || largest - exponent >= 44) return 0;
  return (u64{(q & 0x7fffffu) | 0x800000u} << 20) >> (largest - exponent);
}

// The drafter's weights in one round, at the scale of the target's remaining weights.
class RoundDrafter {
 public:
  // Makes the weights of the whole distribution, whose sum is `sum`.
  static RoundDrafter Whole(u64 sum) { return RoundDrafter(sum, 0, 0, 0); }
  // Makes the weights of the tokens that are left to a drafter without replacement: `largest` is the greatest exponent
  // among them, not 0, and `units` the sum of their LeftUnits.
  static RoundDrafter Left(u64 sum, u32 largest, u64 units) {
    const u32 shift = u32(std::countl_zero(units));
    return RoundDrafter(sum, largest, shift, u64((static_cast<unsigned __int128>(sum) << 63) / (units << shift)));
  }
  // Makes the weights of a drafter with no tokens left: 0 each.
  static RoundDrafter Nothing() { return RoundDrafter(0, 0, 0, 0); }

  // Returns the weight of a token that is left and has probability `q`; at most the sum.
  u64 Weight(u32 q) const {
    if (largest_ == 0) return DraftWeight(q, sum_);
    return u64(static_cast<unsigned __int128>(LeftUnits(q, largest_) << shift_) * scale_ >> 63);
  }

 private:
  RoundDrafter(u64 sum, u32 largest, u32 shift, u64 scale)
      : sum_(sum), largest_(largest), shift_(shift), scale_(scale) {}

  u64 sum_;
  u32 largest_;  // 0: the whole distribution
  u32 shift_;
  u64 scale_;  // floor(2^63 * sum / (units << shift))
};

}  // namespace sortition::law
