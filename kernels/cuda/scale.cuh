// A distribution's distances and weights.
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

// The smallest key from `first` on that is_within(key), as all greater ones are; max_key is. Some keys are no canonical
// logit's, and it may be such. Every lane of a warp calls it: each tries a key.
template <typename IsWithin>
__device__ u32 FirstKeyWhere(u32 first, u32 max_key, IsWithin is_within) {
  u32 last = max_key;
  while (first < last) {
    const u32 step = (last - first) / 32 + 1;
    const u32 key = min(first + Lane() * step, last);
    const u32 within = __ballot_sync(kAllLanes, is_within(key));
    const u32 lane = within == 0 ? 32 : u32(__ffs(i32(within))) - 1;
    if (lane < 32) last = min(first + lane * step, last);
    if (lane > 0) first += (lane - 1) * step + 1;
  }
  return first;
}

// The smallest key that min-p keeps.
__device__ inline u32 MinPFloor(const RowInput& input, u32 max_key, const Scale& scale) {
  if (input.min_p_distance == RowParameters::kMinPOff) return 1;
  const Bound bound = MakeBound(input.min_p_distance);
  return FirstKeyWhere(1, max_key, [&](u32 key) { return IsWithin(DistanceOf(key, scale), bound); });
}

}  // namespace sortition::kernels::cuda
