// Lower bounds of race keys in 32 bits: units of 2^-24 octaves, from -128 octaves. They prune the race and decide
// nothing.
#pragma once

#include "kernels/cuda/platform.cuh"

namespace sortition::kernels::cuda {

// The bound of no token.
constexpr u32 kNoBound = 0xffffffffu;
constexpr u32 kBoundOctave = 1u << 24;

// `race_key` is within 128 octaves of 0: a lag is from 0 up to 63 octaves, and noise is from -65 up to 7.
__device__ inline u32 BoundOf(i64 race_key) { return 0x80000000u + Low(ShiftRight64(u64(race_key), 8)); }

// Returns the bound with that lag more.
__device__ inline u32 Behind(u32 bound, i64 lag) { return bound + Low(ShiftRight64(u64(lag), 8)); }

// Returns a bound of the noise of all tokens of the group with this word, in a few instructions. With U = R / 2^64,
// and because -log2(1 - U) >= U / ln 2 and log2(1 + f) >= f,
//
//   L = log2(-log2(1 - U)) - 6 >= log2(R) - 70 + log2(1 / ln 2) >= log2(2^n (1 + f)) - 69.4713 >= n + f - 69.4713.
//
// The constant leaves 2^-14 octaves for the law's roundings. For 2^48 <= R < 2^61 the bound is within 0.2 octaves of L.
__device__ inline u32 NoiseBound(u64 word) {
  constexpr u32 kBelow = 0x4578a71e;  // 69.4713 octaves, rounded up
  const u32 high = High(word);
  if (high == 0) return 0x80000000u - 70 * kBoundOctave;
  const u32 zeros = u32(__clz(i32(high)));
  const u32 fraction = high << zeros << 1;
  return 0x80000000u + ((63 - zeros) << 24) + (fraction >> 8) - kBelow;
}

}  // namespace sortition::kernels::cuda
