// The noise of one token in the draw's race, a function of the draw's key and the token's id alone.
#pragma once

#include "kernels/law/law.h"

namespace sortition::law {

// L of LAW.md, "The draw": log2 of an exponential variable, Q32, signed.
inline u64 TokenNoise(const DrawKey& key, u32 id) {
  const u32 group = id / kGroupSize;
  const u64 group_word = WordOf(NoiseWords(group / 2, kGroupTag, key), group);
  const u64 a = NegLog2(Uniform(group_word));
  if (Owner(group_word) == id % kGroupSize) return OwnerLog(a);
  return OtherLog(a, NegLog2(Uniform(WordOf(NoiseWords(id / 2, kTokenTag, key), id))));
}

}  // namespace sortition::law
