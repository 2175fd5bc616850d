// Sums of weights over whole rows that need them: of the raw distribution, and of the changed row after min-p.
#pragma once

#include <type_traits>

#include "kernels/cuda/read.cuh"
#include "kernels/cuda/weigher.cuh"

namespace sortition::kernels::cuda {

// One distribution of a row: the sum of its weights, the number of its tokens, and of those before the chosen one; with
// `sums_before` the weights of those in place of both numbers.
struct Weighing {
  u32 floor;  // key: tokens below are left out
  Scale scale;
  u64 chosen;  // rank
  bool sums_before;
  u64 sum = 0;
  u32 count = 0;
  u64 before = 0;

  __device__ Weighing(u32 floor_key, const Scale& row_scale, u64 chosen_rank, bool sums)
      : floor(floor_key), scale(row_scale), chosen(chosen_rank), sums_before(sums) {}

  __device__ void Add(u32 key, u32 token) {
    if (key < floor) return;
    const u64 weight = WeightOf(key, scale);
    sum += weight;
    ++count;
    if (RankOf(key, token) > chosen) before += sums_before ? weight : 1;
  }
};

// A rank before every token.
constexpr u64 kBeforeAll = u64{0xff800000u} << 32;

// Number of visible tokens with this key among a quad's first `end` elements. Called once a row.
template <typename E>
__device__ __noinline__ u32 CountLike(typename E::Quad quad, u32 shown, u32 end, u32 key) {
  u32 count = 0;
#pragma unroll
  for (u32 i = 0; i < E::kPerQuad; ++i) {
    if (i < end && (shown >> i & 1) != 0 && Key(Canonical(E::Bits(quad, i))) == key) ++count;
  }
  return count;
}

// Adds the tokens of groups [first_group, end_group) that show their sent logit. Every thread adds its own.
template <typename E, bool kSumsBefore>
__device__ void AddGroups(u32 first_group, u32 end_group, const u32* visible, Weighing* weighing) {
  constexpr u32 kStep = kThreads * E::kPerQuad;
  // Copies, so that they stay in registers during the loop.
  const void* const logits = OnChip().input.logits;
  const u32 vocabulary = OnChip().input.vocabulary;
  const u32* const powers = OnChip().powers;
  const Weigher weigher(weighing->scale);
  const float floor = NumberFrom(weighing->floor);
  const u32 chosen = TokenOfRank(weighing->chosen);
  const u32 chosen_key = KeyOfRank(weighing->chosen);
  // Lower ids come first among equal logits, so tokens equal to the chosen one are counted separately.
  const float from_chosen = NumberFrom(chosen_key);
  const float above_chosen = NumberFrom(chosen_key + 1);
  u64 sum = 0;
  u32 count = 0;
  std::conditional_t<kSumsBefore, u64, u32> before = 0;

  const u32 end = min(end_group * kGroupSize, vocabulary);
  u32 first = first_group * kGroupSize + Thread() * E::kPerQuad;
  auto next = E::LoadBefore(logits, first, end, vocabulary);
  for (; first < end; first += kStep) {
    const auto quad = next;
    next = E::LoadBefore(logits, first + kStep, end, vocabulary);
    const u32 shown = VisibleBits(visible, first);
    const float least = first + E::kPerQuad <= chosen ? from_chosen : above_chosen;
#pragma unroll
    for (u32 i = 0; i < E::kPerQuad; ++i) {
      const float sent = __uint_as_float(E::Bits(quad, i));
      const bool counts = sent >= floor && (shown >> i & 1) != 0;
      const float x = counts ? sent : __uint_as_float(kMaskedBits);
      const u64 weight = weigher.WeightOfNumber(x, powers);
      sum += weight;
      if constexpr (kSumsBefore) {
        before += x >= least ? weight : 0;
      } else {
        count += counts;
        before += x >= least;
      }
    }
    if (chosen - first < E::kPerQuad) {
      const u32 like = CountLike<E>(quad, shown, chosen - first, chosen_key);
      before += kSumsBefore ? like * WeightOf(chosen_key, weighing->scale) : like;
    }
  }
  weighing->sum += sum;
  weighing->count += count;
  weighing->before += before;
}

// Sums to take of a row.
struct WeighingOfRow {
  bool is_raw;
  bool is_processed;
  Weighing raw;
  Weighing processed;
};

__device__ inline WeighingOfRow OpenWeighing(const Row& row) {
  const RowState& state = row.state;
  const RowInput& input = OnChip().input;
  const bool is_sample = (state.pending & kPendingSample) != 0;
  const bool is_drawn = !is_sample && (state.pending & kPendingChain) == 0;
  // No token is before the chosen one until there is one.
  const u64 chosen = state.token_key != 0 ? RankOf(state.token_key, state.token) : kBeforeAll;
  const bool is_raw = (state.pending & kPendingRaw) != 0;
  const u64 raw_chosen =
      is_drawn && is_raw ? RankOf(Key(Canonical(SentBits(input, state.token))), state.token) : kBeforeAll;
  return {is_raw, is_sample || (state.pending & kPendingProcessed) != 0,
          Weighing(kLowestKey, UnitScale(is_raw ? state.raw_max_key : state.max_key), raw_chosen, false),
          Weighing(state.floor, ScaleOf(input, state.max_key), chosen, is_sample)};
}

// Adds groups [first_group, end_group) of the row and, with the first, its edited tokens to the row's state.
__device__ __noinline__ void WeighSection(const Row& row, u32 first_group, u32 end_group) {
  const RowInput& input = OnChip().input;
  WeighingOfRow weighing = OpenWeighing(row);
  if (Thread() < 32) OnChip().powers[Thread()] = kPowers[Thread()];
  __syncthreads();
  WithElements(input.dtype, [&](auto elements) {
    using E = decltype(elements);
    if (weighing.is_raw) AddGroups<E, false>(first_group, end_group, nullptr, &weighing.raw);
    if (!weighing.is_processed) return;
    if (weighing.processed.sums_before) {
      AddGroups<E, true>(first_group, end_group, row.visible(), &weighing.processed);
    } else {
      AddGroups<E, false>(first_group, end_group, row.visible(), &weighing.processed);
    }
  });
  if (first_group == 0 && weighing.is_processed) {
    for (u32 i = Thread(); i < input.edit_count; i += kThreads) {
      weighing.processed.Add(row.edit_keys()[i], input.edits[i].token);
    }
  }
  const u64 raw_sum = SumOfAll(weighing.raw.sum);
  const u64 processed_sum = SumOfAll(weighing.processed.sum);
  const u32 raw_before = CountOfAll(u32(weighing.raw.before));
  const u64 processed_before = SumOfAll(weighing.processed.before);
  const u32 processed_count = CountOfAll(weighing.processed.count);
  if (Thread() != 0) return;
  atomicAdd(reinterpret_cast<unsigned long long*>(&row.state.raw_sum), raw_sum);
  atomicAdd(reinterpret_cast<unsigned long long*>(&row.state.processed_sum), processed_sum);
  atomicAdd(&row.state.raw_before, raw_before);
  atomicAdd(reinterpret_cast<unsigned long long*>(&row.state.processed_before), processed_before);
  atomicAdd(&row.state.processed_count, processed_count);
}

}  // namespace sortition::kernels::cuda
