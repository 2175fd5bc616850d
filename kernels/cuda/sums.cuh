// Sums of weights over some groups of a row, and bounds on those over others.
#pragma once

#include "kernels/cuda/row.cuh"
#include "kernels/cuda/scale.cuh"

namespace sortition::kernels::cuda {

// Bounds on a sum of weights, both of which may be met.
struct SumBounds {
  u64 low;
  u64 high;
};

// Returns bounds on `sum` and the weights of groups whose largest weights sum to `maxima`. A group weighs its largest
// weight at least, and kGroupSize times that at most.
__device__ inline SumBounds BoundsOf(u64 sum, u64 maxima) {
  constexpr u64 kMost = ~u64{0};
  const u64 most = maxima > kMost / kGroupSize ? kMost : maxima * kGroupSize;
  return {sum + maxima, most > kMost - sum ? kMost : sum + most};
}

// Returns the sum of the largest weights of the groups whose largest key is from `floor` up to, and not, `level`.
__device__ __noinline__ inline u64 WeighMaxima(const Row& row, const View& view, u32 floor, u32 level,
                                               const Scale& scale) {
  u64 sum = 0;
  for (u32 i = Thread(); i < row.groups; i += kThreads) {
    const u32 key = view.maxima[i];
    if (key >= floor && key < level) sum += WeightOf(key, scale);
  }
  return SumOfAll(sum);
}

// The sum of the weights of some tokens, and of those of them that are before a winner.
struct SplitSum {
  u64 all;
  u64 before;
};

// Weighs the tokens with a key >= `floor` of `count` listed groups, and the edited ones.
__device__ __noinline__ inline SplitSum WeighGroups(const Row& row, const View& view, const u16* list, u32 count,
                                                    u32 floor, u64 winner, const Scale& scale) {
  SplitSum sum = {0, 0};
  const auto add = [&](u32 key, u32 token) {
    if (key < floor) return;
    const u64 weight = WeightOf(key, scale);
    sum.all += weight;
    if (RankOf(key, token) > winner) sum.before += weight;
  };
  VisitGroups(view, list, count, add);
  VisitEdited(row, view, add);
  return {SumOfAll(sum.all), SumOfAll(sum.before)};
}

}  // namespace sortition::kernels::cuda
