// Sums of weights over whole rows, for those that ask: of the raw distribution, and of what min-p leaves of the changed
// one.
#pragma once

#include "kernels/cuda/read.cuh"
#include "kernels/cuda/scale.cuh"

namespace sortition::kernels::cuda {

// Of one distribution: what its tokens weigh, how many they are, and how many come before the chosen one.
struct Weighing {
  u32 floor;  // key: tokens below are left out
  Scale scale;
  u64 chosen;  // rank
  u64 sum = 0;
  u32 count = 0;
  u32 before = 0;

  __device__ Weighing(u32 floor_key, const Scale& row_scale, u64 chosen_rank)
      : floor(floor_key), scale(row_scale), chosen(chosen_rank) {}

  __device__ void Add(u32 key, u32 token) {
    if (key < floor) return;
    sum += WeightOf(key, scale);
    ++count;
    before += RankOf(key, token) > chosen;
  }
};

// What is to be weighed of a row.
struct WeighingOfRow {
  bool is_raw;
  bool is_processed;
  Weighing raw;
  Weighing processed;
};

__device__ inline WeighingOfRow OpenWeighing(const Row& row) {
  const RowState& state = row.state;
  const RowInput& input = row.shared.input;
  // Nothing comes before a token that is not drawn yet.
  const bool is_drawn = (state.pending & (kPendingSample | kPendingChain)) == 0;
  const u64 none = ~u64{0};
  const u64 chosen = is_drawn ? RankOf(state.token_key, state.token) : none;
  const bool is_raw = (state.pending & kPendingRaw) != 0;
  const u64 raw_chosen = is_drawn && is_raw ? RankOf(Key(Canonical(SentBits(input, state.token))), state.token) : none;
  return {is_raw, (state.pending & (kPendingSample | kPendingProcessed)) != 0,
          Weighing(1, UnitScale(is_raw ? state.raw_max_key : state.max_key), raw_chosen),
          Weighing(state.floor, ScaleOf(input, state.max_key), chosen)};
}

// Adds groups [first_group, end_group) of the row and, with the first, its patched tokens to the row's state.
__device__ __noinline__ void WeighChunk(const Row& row, u32 first_group, u32 end_group) {
  const RowInput& input = row.shared.input;
  WeighingOfRow weighing = OpenWeighing(row);
  const u32* const visible = weighing.is_processed ? row.visible() : nullptr;
  WithElements(input.dtype, [&](auto elements) {
    using E = decltype(elements);
    const u32 end = min(end_group * kGroupSize, input.vocabulary);
    for (u32 first = first_group * kGroupSize + Thread() * E::kPerQuad; first < end; first += kThreads * E::kPerQuad) {
      const auto quad = E::Load(input.logits, first, input.vocabulary);
      const u32 shown = VisibleBits(visible, first);
#pragma unroll
      for (u32 i = 0; i < E::kPerQuad; ++i) {
        const u32 key = Key(Canonical(E::Bits(quad, i)));
        if (weighing.is_raw) weighing.raw.Add(key, first + i);
        if (weighing.is_processed && (shown >> i & 1) != 0) weighing.processed.Add(key, first + i);
      }
    }
  });
  if (first_group == 0 && weighing.is_processed) {
    for (u32 i = Thread(); i < input.patch_count; i += kThreads) {
      weighing.processed.Add(row.patch_keys()[i], input.patches[i].token);
    }
  }
  const u64 raw_sum = SumOfAll(row.shared, weighing.raw.sum);
  const u64 processed_sum = SumOfAll(row.shared, weighing.processed.sum);
  const u32 raw_before = CountOfAll(row.shared, weighing.raw.before);
  const u32 processed_before = CountOfAll(row.shared, weighing.processed.before);
  const u32 processed_count = CountOfAll(row.shared, weighing.processed.count);
  if (Thread() != 0) return;
  atomicAdd(reinterpret_cast<unsigned long long*>(&row.state.raw_sum), raw_sum);
  atomicAdd(reinterpret_cast<unsigned long long*>(&row.state.processed_sum), processed_sum);
  atomicAdd(&row.state.raw_before, raw_before);
  atomicAdd(&row.state.processed_before, processed_before);
  atomicAdd(&row.state.processed_count, processed_count);
}

}  // namespace sortition::kernels::cuda
