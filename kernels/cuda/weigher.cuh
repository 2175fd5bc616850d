// The law's weights for loops over whole rows: the bits of WeightOf in a third of its instructions, and no branch.
//
// Two operations are floating point and neither rounds: a logit times a power of two, and the cut towards zero to an
// integer.
#pragma once

#include "kernels/cuda/scale.cuh"

namespace sortition::kernels::cuda {

// Returns the smallest number whose key is at least `key`; NaN if there is none. Comparing sent logits with it is the
// same as comparing keys: NaN and masked logits are in no range, and logits that flush to 0 compare like 0.
__device__ inline float NumberFrom(u32 key) {
  constexpr u32 kZero = 0x80000000u;
  constexpr u32 kLeastPositive = kZero | 0x21800000u;  // 2^-60
  constexpr u32 kLeastFlushed = ~0xa17fffffu;          // just above -2^-60
  if (key > kZero && key < kLeastPositive) key = kLeastPositive;
  if (key > kLeastFlushed && key <= kZero) key = kLeastFlushed;
  return __uint_as_float(KeyBits(max(key, kLowestKey)));
}

struct Weigher {
  u32 max;       // X(M)
  float factor;  // turns a logit into X
  u32 multiplier;
  u32 shift;
  u32 most;  // the X(M) - X, between 45 and 46 octaves, at which weights become 0

  __device__ explicit Weigher(const Scale& scale)
      : max(scale.max),
        factor(__uint_as_float((284u - scale.e0) << 23)),
        multiplier(scale.multiplier),
        shift(scale.shift),
        most(u32((u64{46} << (26 + scale.shift)) / scale.multiplier)) {}

  // Returns the weight of a live logit that is not above the row's largest; 0 for -Inf. `powers`: kPowers. Values too
  // large for X saturate far beyond `most`.
  __device__ u64 WeightOfNumber(float x, const u32* powers) const {
    const u32 below = min(max - u32(__float2int_rz(__fmul_rn(x, factor))), most);
    const u32 t = Low(ShiftRight64(Mul32(below, multiplier), shift));
    return ShiftRight64(Mul32(powers[(t >> 21) & 31u], WeightCurve(t)), (t >> 26) + 15u);
  }
};

}  // namespace sortition::kernels::cuda
