// Finds the places of a row's requested tokens and of its chosen token.
#pragma once

#include "kernels/cuda/kept.cuh"
#include "kernels/cuda/read.cuh"

namespace sortition::kernels::cuda {

// Returns the token's key in the view, 0 where it is masked.
__device__ inline u32 KeyIn(const Row& row, const View& view, u32 token) {
  const RowInput& input = OnChip().input;
  if (view.edit_count != 0) {
    const u32 edit = FirstEdit(input, token);
    if (edit < view.edit_count && input.edits[edit].token == token) return row.edit_keys()[edit];
  }
  if (view.visible != nullptr && (view.visible[token / 32] >> (token % 32) & 1) == 0) return 0;
  return Key(Canonical(SentBits(input, token)));
}

// The most places found at once: ranks take half of the list, their counters the other half.
constexpr u32 kMostPlaces = kListed / 2;
static_assert(kMaxTopLogprobs + 1 <= kMostPlaces && kMostPlaces == 4 * kThreads);

// Sorts the ranks rank_of(i) of `count` tokens; a rank is 0 for a token outside the distribution. The distribution has
// the tokens up to `last` in order. Leaves a counter for each rank: the number of tokens of the distribution up to it.
// Returns how many of the tokens are in the distribution.
template <typename RankOfToken>
__device__ u32 CountUpTo(const Row& row, const View& view, u64 last, u32 count, RankOfToken rank_of) {
  Shared& shared = OnChip();
  u32* const counters = reinterpret_cast<u32*>(shared.list + kMostPlaces);
  __syncthreads();
  u32 own = 0;
  for (u32 i = Thread(); i < count; i += kThreads) {
    shared.list[i] = rank_of(i);
    own += shared.list[i] != 0;
  }
  for (u32 i = Thread(); i < kMostPlaces; i += kThreads) counters[i] = 0;
  const u32 known = CountOfAll(own);
  SortList(count);
  if (known == 0) return 0;
  VisitFrom(row, view, max(last, shared.list[known - 1]),
            [&](u64 rank) { atomicAdd(&counters[FirstAtMost(shared.list, known, rank)], 1u); });
  __syncthreads();
  u32 sums[4];
  u32 sum = 0;
  for (u32 i = 0; i < 4; ++i) sums[i] = sum += counters[4 * Thread() + i];
  const u32 before = u32(SumUpToThis(sum)) - sum;
  for (u32 i = 0; i < 4; ++i) counters[4 * Thread() + i] = before + sums[i];
  __syncthreads();
  return known;
}

// Returns the place of the answer's token, and fills `places` with the requested tokens' places: in the chain's kept
// tokens, or in the raw distribution if `chain` is null. A chain's list keeps its content.
__device__ __noinline__ TokenPlace FindPlaces(const Row& row, const View& view, const Chain* chain, u32 token,
                                              TokenPlace* places) {
  Shared& shared = OnChip();
  __syncthreads();
  const ChainedInput& ask = *shared.input.chained;
  const u32 requested = places != nullptr ? ask.requested_count : 0;
  const u32 listed = chain != nullptr ? chain->listed : 0;
  const u64 last = chain != nullptr ? chain->last : kLastLive;
  const auto rank_of = [&](u32 i) {
    const u32 id = i < requested ? ask.requested[i] : token;
    const u32 key = KeyIn(row, view, id);
    const u64 rank = RankOf(key, id);
    return key != 0 && (listed != 0 || rank >= last) ? rank : 0;
  };
  u32 known = listed;
  if (listed == 0) known = CountUpTo(row, view, last, requested + 1, rank_of);
  const u32* const counters = reinterpret_cast<const u32*>(shared.list + kMostPlaces);
  for (u32 i = Thread(); i <= requested; i += kThreads) {
    const u64 rank = rank_of(i);
    const u32 at = FirstAtMost(shared.list, known, rank);
    TokenPlace place = {kMaskedBits, 0};
    if (rank != 0 && at < known && shared.list[at] == rank) {
      place.bits = chain != nullptr ? ShownBits(KeyOfRank(rank), chain->shape) : KeyBits(KeyOfRank(rank));
      place.rank = listed != 0 ? at + 1 : counters[at];
    }
    if (i < requested) {
      places[i] = place;
    } else {
      shared.cut_before = Make64(place.bits, place.rank);
    }
  }
  __syncthreads();
  return {Low(shared.cut_before), High(shared.cut_before)};
}

}  // namespace sortition::kernels::cuda
