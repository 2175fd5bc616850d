// min-p, top-k, top-p: each keeps a prefix of the tokens that the one before it left.
#pragma once

#include "kernels/cuda/select.cuh"

namespace sortition::kernels::cuda {

// Tokens that filters keep.
struct Kept {
  u64 last;    // rank of the last kept token, or any rank after it and before every token that is not kept
  u32 listed;  // number of kept tokens in the list, in order; 0: not listed
};

// Leaves room for ties at a list's end.
static_assert(kMostListed <= kListed / 2);
// Groups whose tokens are tried first for an unbounded top-p.
constexpr u32 kLeadingGroups = 128;

__device__ inline Kept KeptList(u32 count) { return {OnChip().list[count - 1], count}; }

// Applies top-p to the first `count` tokens, which are listed.
template <typename AnyScale>
__device__ Kept TopPOfList(u32 count, u32 top_p, const AnyScale& scale) {
  const Threshold target = TopPThreshold(SumOfList(count, scale), top_p);
  return KeptList(PrefixReaching(count, target, scale));
}

// Lists the shortest prefix of the candidates from `last` that reaches `target`, and returns its length; 0 if it is not
// short, as it is in a peaked row.
template <typename AnyScale>
__device__ u32 ListPrefix(const Row& row, const View& view, Threshold target, u64 last, const AnyScale& scale) {
  return PrefixReaching(SelectFirst(row, view, kLeadingGroups, last), target, scale);
}

// Returns the last candidate of that prefix.
template <typename AnyScale>
__device__ __noinline__ u64 EndOfPrefix(const Row& row, const View& view, Threshold target, u64 last,
                                        const AnyScale& scale) {
  return FindCut(kRankDigits, target, [&](u32 from, auto visit) {
    VisitFrom(row, view, max(last, RankOf(max(from, 1u), kNone)),
              [&](u64 rank) { visit(rank, WeightOf(KeyOfRank(rank), scale)); });
  });
}

// Applies top-p to all candidates from `last`, whose weights sum to `sum`.
template <typename AnyScale>
__device__ Kept TopPOfRow(const Row& row, const View& view, u64 sum, u32 top_p, u64 last, const AnyScale& scale) {
  const Threshold target = TopPThreshold(sum, top_p);
  const u32 count = ListPrefix(row, view, target, last, scale);
  if (count != 0) return KeptList(count);
  return {EndOfPrefix(row, view, target, last, scale), 0};
}

// Applies all filters but an unbounded top-p. `floor` is MinPFloor's.
__device__ inline Kept Filter(const Row& row, const View& view, u32 floor, const Scale& scale) {
  Shared& shared = OnChip();
  const RowInput& input = shared.input;
  const u64 last = RankOf(floor, kNone);
  if (input.top_k == 0) {
    if (floor == 1) return {last, 0};
    const u32 count = Collect(row, view, last);
    if (count > kMostListed) return {last, 0};
    SortList(count);
    return KeptList(count);
  }
  if (input.top_k <= kMostListed) {
    const u32 count = SelectFirst(row, view, input.top_k, last);
    if (input.top_p == 0) return KeptList(count);
    return TopPOfList(count, input.top_p, scale);
  }
  const Mass all = MassFrom(row, view, last, scale);
  Kept kept = {last, 0};
  if (all.count > input.top_k) kept.last = EndOfFirst(row, view, input.top_k, last);
  if (input.top_p == 0) return kept;
  const u64 sum = all.count > input.top_k ? MassFrom(row, view, kept.last, scale).sum : all.sum;
  return TopPOfRow(row, view, sum, input.top_p, kept.last, scale);
}

}  // namespace sortition::kernels::cuda
