// A distribution's distances and weights, of plain rows and of rows that a chain reshapes.
#pragma once

#include "kernels/cuda/shared.cuh"

namespace sortition::kernels::cuda {

// `max_key` is the largest key of the changed row.
__device__ inline Scale ScaleOf(const RowInput& input, u32 max_key) {
  return MakeScale(KeyBits(max_key), input.multiplier, input.exponent, input.window);
}

// The raw distribution's temperature is 1.
__device__ inline Scale UnitScale(u32 raw_max_key) { return ScaleOf(KeyBits(raw_max_key), UnitTemperature()); }

__device__ inline u32 DistanceOf(u32 key, const Scale& scale) { return Distance(KeyBits(key), scale); }
__device__ inline u64 WeightOf(u32 key, const Scale& scale) { return Weight(DistanceOf(key, scale)); }

// Returns the smallest key >= `first` for which holds(key) is true; it is true for all larger keys up to `max_key`.
// Some keys belong to no canonical logit; the returned key may be one of these. Every lane of a warp calls it, and
// tries one key.
template <typename Holds>
__device__ u32 FirstKeyWhere(u32 first, u32 max_key, Holds holds) {
  u32 last = max_key;
  while (first < last) {
    const u32 step = (last - first) / 32 + 1;
    const u32 key = min(first + Lane() * step, last);
    const u32 within = __ballot_sync(kAllLanes, holds(key));
    const u32 lane = within == 0 ? 32 : u32(__ffs(i32(within))) - 1;
    if (lane < 32) last = min(first + lane * step, last);
    if (lane > 0) first += (lane - 1) * step + 1;
  }
  return first;
}

// Returns the smallest key that min-p keeps.
__device__ inline u32 MinPFloor(const RowInput& input, u32 max_key, const Scale& scale) {
  if (input.min_p_distance == RowParameters::kMinPOff) return 1;
  const Bound bound = MakeBound(input.min_p_distance);
  return FirstKeyWhere(1, max_key, [&](u32 key) { return IsWithin(DistanceOf(key, scale), bound); });
}

// Out of line: the curve's arithmetic is long, and few rows have one.
__device__ __noinline__ inline u32 ReshapedBits(u32 key, const Shape& shape) { return ShapedBits(KeyBits(key), shape); }
__device__ __noinline__ inline u32 ReshapedDistance(u32 key, const Shape& shape) {
  return ShapedDistance(KeyBits(key), shape);
}

// Returns the logit of a token after the stages so far.
__device__ inline u32 BitsOf(u32 key, const Shape& shape) {
  return shape.is_curved ? ReshapedBits(key, shape) : KeyBits(key);
}
__device__ inline u32 DistanceOf(u32 key, const Shape& shape) {
  return shape.is_curved || shape.is_adapted ? ReshapedDistance(key, shape) : DistanceOf(key, shape.scale);
}
__device__ inline u64 WeightOf(u32 key, const Shape& shape) { return Weight(DistanceOf(key, shape)); }

// Returns the least distance of the tokens whose keys are at most `key`. Adaptive-p may make the last the nearest.
__device__ inline u32 LeastDistance(u32 key, const Scale& scale) { return DistanceOf(key, scale); }
__device__ inline u32 LeastDistance(u32 key, const Shape& shape) {
  return shape.is_adapted ? 0 : DistanceOf(key, shape);
}
__device__ inline u64 LargestWeight(u32 key, const Shape& shape) { return Weight(LeastDistance(key, shape)); }

// The law's FirstKeyKept, by a warp.
__device__ __noinline__ inline u32 FirstKeyWithin(u32 cut, Bound bound, u32 max_key, const Shape& shape) {
  return FirstKeyWhere(kLowestKey, max_key, [&](u32 key) { return KeepsKey(cut, bound, key, shape); });
}

// law::ProcessedBits on the device: a token's bits in answers about the processed distribution.
__device__ __noinline__ inline u32 ShownBits(u32 key, const Shape& shape) {
  if (!shape.is_adapted) return BitsOf(key, shape);
  const u32 t = DistanceOf(key, shape);
  if (t == kDead) return kMaskedBits;
  const float nats = __double2float_rn(__dmul_rn(__ll2double_rn(t), 0x1.62e42fefa39efp-27));
  return Canonical(__float_as_uint(nats) | 0x80000000u);
}

__device__ inline double NumberOf(u32 bits) { return double(__uint_as_float(bits)); }

}  // namespace sortition::kernels::cuda
