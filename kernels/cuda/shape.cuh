// Distances of rows that a chain reshapes, beside scale.cuh's.
#pragma once

#include "kernels/cuda/logprob.cuh"
#include "kernels/cuda/scale.cuh"

namespace sortition::kernels::cuda {

// Out of line: the curve's arithmetic is long, and few rows have one.
__device__ __noinline__ u32 ReshapedBits(u32 key, const Shape& shape) { return ShapedBits(KeyBits(key), shape); }
__device__ __noinline__ u32 ReshapedDistance(u32 key, const Shape& shape) {
  return ShapedDistance(KeyBits(key), shape);
}

// The logit that a token has now.
__device__ inline u32 BitsOf(u32 key, const Shape& shape) {
  return shape.is_curved ? ReshapedBits(key, shape) : KeyBits(key);
}
__device__ inline u32 DistanceOf(u32 key, const Shape& shape) {
  return shape.is_curved || shape.is_adapted ? ReshapedDistance(key, shape) : DistanceOf(key, shape.scale);
}
__device__ inline u64 WeightOf(u32 key, const Shape& shape) { return Weight(DistanceOf(key, shape)); }

// Of the tokens whose keys are at most `key`: adaptive-p may bring the last of them nearest.
__device__ inline u32 LeastDistance(u32 key, const Scale& scale) { return DistanceOf(key, scale); }
__device__ inline u32 LeastDistance(u32 key, const Shape& shape) {
  return shape.is_adapted ? 0 : DistanceOf(key, shape);
}
__device__ inline u64 LargestWeight(u32 key, const Shape& shape) { return Weight(LeastDistance(key, shape)); }

// The law's FirstKeyKept, by a warp.
__device__ __noinline__ u32 FirstKeyWithin(u32 cut, Bound bound, u32 max_key, const Shape& shape) {
  return FirstKeyWhere(kLowestKey, max_key, [&](u32 key) { return KeepsKey(cut, bound, key, shape); });
}

// law::ProcessedBits on the device: what answers show for a token of the processed distribution.
__device__ __noinline__ u32 ShownBits(u32 key, const Shape& shape) {
  if (!shape.is_adapted) return BitsOf(key, shape);
  const u32 t = DistanceOf(key, shape);
  if (t == kDead) return kMaskedBits;
  const float nats = __double2float_rn(__dmul_rn(__ll2double_rn(t), 0x1.62e42fefa39efp-27));
  return Canonical(__float_as_uint(nats) | 0x80000000u);
}

}  // namespace sortition::kernels::cuda
