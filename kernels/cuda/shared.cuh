// The memory of a block, and functions that its threads compute together.
//
// Every thread of the block calls these functions, at the same place. Results do not depend on the order in which
// threads run: they are maxima, sums of integers, and lists that are sorted before their order matters.
#pragma once

#include "kernels/cuda/platform.cuh"

namespace sortition::kernels::cuda {

constexpr u32 kListed = 2048;        // candidates that a list holds
constexpr u32 kSharedGroups = 2560;  // the most groups of a row that keeps its maxima and lists on chip
static_assert(kSharedGroups % kThreads == 0);
constexpr u32 kRacers = kListed - kSharedGroups / 2;  // tokens that race at once
constexpr u32 kBins = 256;
static_assert(kBins == kThreads);

struct Shared {
  union {
    u64 list[kListed];                   // ranks of candidates
    u32 visible[2 * kMaxSectionGroups];  // while a section is read
    struct {
      u64 racers[kRacers];        // ranks
      u32 bounds[kSharedGroups];  // of groups
    } racing;
  };
  u32 maxima[kSharedGroups];
  u16 groups[kSharedGroups];
  u16 survivors[kSharedGroups];
  u32 bins_low[kBins];
  u32 bins_high[kBins];
  u32 powers[32];  // kPowers, while a row is weighed
  u64 warp_values[kWarps];
  u64 warp_ranks[kWarps];
  u64 cut_before;
  u32 cut_digit;
  u32 count;
  u32 written;
  u32 sent_error;
  u32 changed_error;
  u32 is_last;
  RowInput input;
};

// Returns the block's memory. No pointer to it is passed on, so that the compiler knows where everything lies.
__device__ inline Shared& OnChip() {
  KERNEL_SHARED(Shared, shared);
  return shared;
}

__device__ inline u32 MaxOfAll(u32 value) {
  Shared& shared = OnChip();
  value = __reduce_max_sync(kAllLanes, value);
  __syncthreads();
  if (Lane() == 0) shared.warp_values[Warp()] = value;
  __syncthreads();
  for (u32 warp = 0; warp < kWarps; ++warp) value = max(value, u32(shared.warp_values[warp]));
  return value;
}

__device__ inline u32 CountOfAll(u32 value) {
  Shared& shared = OnChip();
  value = __reduce_add_sync(kAllLanes, value);
  __syncthreads();
  if (Lane() == 0) shared.warp_values[Warp()] = value;
  __syncthreads();
  u32 sum = 0;
  for (u32 warp = 0; warp < kWarps; ++warp) sum += u32(shared.warp_values[warp]);
  return sum;
}

__device__ inline u64 SumOfAll(u64 value) {
  Shared& shared = OnChip();
  for (u32 step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  __syncthreads();
  if (Lane() == 0) shared.warp_values[Warp()] = value;
  __syncthreads();
  u64 sum = 0;
  for (u32 warp = 0; warp < kWarps; ++warp) sum += shared.warp_values[warp];
  return sum;
}

template <typename T>
__device__ T MinOfAll(T value) {
  Shared& shared = OnChip();
  for (u32 step = 16; step > 0; step /= 2) value = min(value, T(__shfl_xor_sync(kAllLanes, value, step)));
  __syncthreads();
  if (Lane() == 0) shared.warp_values[Warp()] = u64(value);
  __syncthreads();
  for (u32 warp = 0; warp < kWarps; ++warp) value = min(value, T(shared.warp_values[warp]));
  return value;
}

// Returns the sum of the values of this thread and of all threads before it.
__device__ inline u64 SumUpToThis(u64 value) {
  Shared& shared = OnChip();
  for (u32 step = 1; step < 32; step *= 2) {
    const u64 other = __shfl_up_sync(kAllLanes, value, step);
    if (Lane() >= step) value += other;
  }
  __syncthreads();
  if (Lane() == 31) shared.warp_values[Warp()] = value;
  __syncthreads();
  for (u32 warp = 0; warp < Warp(); ++warp) value += shared.warp_values[warp];
  return value;
}

// Sets the block's counter. Threads add to it later.
__device__ inline void SetCount(u32 count) {
  Shared& shared = OnChip();
  __syncthreads();
  if (Thread() == 0) shared.count = count;
  __syncthreads();
}

// Returns the counter after all threads have added.
__device__ inline u32 CountOf() {
  Shared& shared = OnChip();
  __syncthreads();
  return shared.count;
}

// Candidates as one number: the greater comes first in the law's order (law::Before).
__device__ inline u64 RankOf(u32 key, u32 token) { return Make64(~token, key); }
__device__ inline u32 KeyOfRank(u64 rank) { return High(rank); }
__device__ inline u32 TokenOfRank(u64 rank) { return ~Low(rank); }
// A rank after every token that is not masked.
constexpr u64 kLastLive = u64{1} << 32;

}  // namespace sortition::kernels::cuda
