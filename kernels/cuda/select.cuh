// Selection in the law's order without sorting the vocabulary: a list of candidates on chip where they are few, and a
// radix search for the end of a prefix where they are many.
#pragma once

#include "kernels/cuda/row.cuh"
#include "kernels/cuda/scale.cuh"

namespace sortition::kernels::cuda {

// The search for the end of a prefix goes through the digits of the rank, leading ones first: 4 of the key, 3 of the
// id.
constexpr u32 kKeyDigits = 4;
constexpr u32 kRankDigits = 7;
__device__ inline u32 ShiftOfDigit(u32 digit) { return digit < kKeyDigits ? 56 - 8 * digit : 48 - 8 * digit; }

__device__ inline void AddToBin(u32 bin, u64 value) {
  Shared& shared = OnChip();
  const u32 before = atomicAdd(&shared.bins_low[bin], Low(value));
  const u32 high = High(value) + (before + Low(value) < before ? 1 : 0);
  if (high != 0) atomicAdd(&shared.bins_high[bin], high);
}

// Adds bins to `before`, from the highest down, and finds the bin with which the sum reaches `target`. Leaves the bin
// and the sum before it in shared.cut_*.
__device__ inline void FindBin(u64 before, Threshold target) {
  Shared& shared = OnChip();
  __syncthreads();
  const u32 bin = kBins - 1 - Thread();
  const u64 value = Make64(shared.bins_low[bin], shared.bins_high[bin]);
  const u64 end = before + SumUpToThis(value);
  if (Crosses(end - value, end, target)) {
    shared.cut_digit = bin;
    shared.cut_before = end - value;
  }
  __syncthreads();
}

// Finds the shortest prefix whose counts sum to `target` or more, and returns its last candidate's rank. `target` >= 1
// and at most the sum of all counts. visit_all(floor, visit) makes the threads call visit(rank, count) for all
// candidates with a key >= `floor`, and perhaps for others.
template <typename VisitAll>
__device__ u64 FindCut(u32 digits, Threshold target, VisitAll visit_all) {
  Shared& shared = OnChip();
  u64 prefix = 0;
  u64 before = 0;
  for (u32 digit = 0; digit < digits; ++digit) {
    const u32 shift = ShiftOfDigit(digit);
    __syncthreads();
    shared.bins_low[Thread()] = 0;
    shared.bins_high[Thread()] = 0;
    __syncthreads();
    visit_all(KeyOfRank(prefix), [&](u64 rank, u64 count) {
      if (digit != 0 && ((rank ^ prefix) >> (shift + 8)) != 0) return;
      AddToBin(u32(rank >> shift) & 255, count);
    });
    FindBin(before, target);
    before = shared.cut_before;
    prefix |= u64(shared.cut_digit) << shift;
    // Ids have 20 bits, so the upper digit of their complement is always 0xff.
    if (digit == kKeyDigits - 1) prefix |= 0xff000000u;
  }
  return prefix;
}

// Returns a lower bound for the key of the `count`-th candidate from `last`: at least `count` groups' maxima reach it,
// and not many more. KeyOfRank(last) if fewer groups reach it. Uses bins of equal width over all maxima, then over one
// bin's.
__device__ __noinline__ u32 BoundOfNth(const Row& row, const View& view, u32 count, u64 last) {
  const u32 enough = count + count / 8 + 32;
  const u32 floor = KeyOfRank(last);
  u32 reaching = 0;
  u32 top = 0;
  u32 bottom = kNone;
  for (u32 i = Thread(); i < row.groups; i += kThreads) {
    const u32 key = view.maxima[i];
    if (key < floor) continue;
    ++reaching;
    top = max(top, key);
    bottom = min(bottom, key);
  }
  if (CountOfAll(reaching) < count) return floor;
  top = MaxOfAll(top);
  bottom = ~MaxOfAll(~bottom);

  Shared& shared = OnChip();
  for (u32 above = 0;;) {
    // The first bin holds the top.
    const u32 shift = 32 - min(32u, u32(__clz(i32((top - bottom) >> 8))));
    __syncthreads();
    shared.bins_low[Thread()] = 0;
    __syncthreads();
    for (u32 i = Thread(); i < row.groups; i += kThreads) {
      const u32 key = view.maxima[i];
      if (key >= bottom && key <= top) atomicAdd(&shared.bins_low[(top - key) >> shift], 1u);
    }
    __syncthreads();
    const u32 own = shared.bins_low[Thread()];
    const u32 reached = above + u32(SumUpToThis(own));
    if (reached - own < count && count <= reached) {
      shared.cut_digit = Thread();
      shared.cut_before = Make64(reached - own, reached);
    }
    __syncthreads();
    const u32 first = top - (shared.cut_digit << shift);
    const u32 width = 1u << shift;
    bottom = first - bottom < width ? bottom : first - (width - 1);
    if (shift == 0 || High(shared.cut_before) <= enough) return bottom;
    top = first;
    above = Low(shared.cut_before);
  }
}

// Sorts the list, first in order first. count <= kListed. Pairs at a distance of up to 32 stay within a warp, so only
// wider steps need a barrier.
__device__ __noinline__ void SortList(u32 count) {
  Shared& shared = OnChip();
  u32 size = 2;
  while (size < count) size *= 2;
  __syncthreads();
  for (u32 i = count + Thread(); i < size; i += kThreads) shared.list[i] = 0;
  __syncthreads();
  for (u32 width = 2; width <= size; width *= 2) {
    for (u32 stride = width / 2; stride > 0; stride /= 2) {
      for (u32 i = Thread(); i < size / 2; i += kThreads) {
        const u32 low = 2 * i - (i & (stride - 1));
        const u64 a = shared.list[low];
        const u64 b = shared.list[low + stride];
        if ((a < b) == ((low & width) == 0)) {
          shared.list[low] = b;
          shared.list[low + stride] = a;
        }
      }
      const u32 next = stride > 1 ? stride / 2 : width;
      if (stride > 32 || next > 32) {
        __syncthreads();
      } else {
        __syncwarp();
      }
    }
  }
  __syncthreads();
}

// Puts the candidates up to `last` in order into the list, in no particular order, until it is full. Returns their
// number, listed or not.
__device__ __noinline__ u32 Collect(const Row& row, const View& view, u64 last) {
  Shared& shared = OnChip();
  u16* const list = row.group_list();
  const u32 floor = KeyOfRank(last);
  const u32 groups = ListGroups(row, list, [&](u32 group) { return view.maxima[group] >= floor; });
  SetCount(0);
  const auto collect = [&](u32 key, u32 token) {
    const u64 rank = RankOf(key, token);
    if (rank < last) return;
    const u32 place = atomicAdd(&shared.count, 1u);
    if (place < kListed) shared.list[place] = rank;
  };
  VisitGroups(view, list, groups, collect);
  VisitEdited(row, view, collect);
  return CountOf();
}

// Returns the rank of the `count`-th candidate. More than `count` candidates stand up to `last`.
__device__ __noinline__ u64 EndOfFirst(const Row& row, const View& view, u32 count, u64 last) {
  return FindCut(kRankDigits, MakeThreshold(count), [&](u32 from, auto visit) {
    VisitFrom(row, view, max(last, RankOf(max(from, 1u), kNone)), [&](u64 rank) { visit(rank, 1); });
  });
}

// Puts the first `count` candidates up to `last` into the list, in order, and returns their number. 1 <= count <=
// kListed / 2. Reads about `count` groups, or all if there are fewer.
__device__ __noinline__ u32 SelectFirst(const Row& row, const View& view, u32 count, u64 last) {
  last = max(last, RankOf(BoundOfNth(row, view, count, last), kNone));
  u32 found = Collect(row, view, last);
  if (found > kListed) found = Collect(row, view, EndOfFirst(row, view, count, last));
  SortList(found);
  return min(found, count);
}

// Number and weight of the candidates that are not after `last`.
struct Mass {
  u64 sum;
  u32 count;
};
__device__ __noinline__ Mass MassFrom(const Row& row, const View& view, u64 last, const Scale& scale) {
  u64 sum = 0;
  u32 count = 0;
  VisitFrom(row, view, last, [&](u64 rank) {
    sum += WeightOf(KeyOfRank(rank), scale);
    ++count;
  });
  return {SumOfAll(sum), CountOfAll(count)};
}

__device__ __noinline__ u32 CountFrom(const Row& row, const View& view, u64 last) {
  u32 count = 0;
  VisitFrom(row, view, last, [&](u64) { ++count; });
  return CountOfAll(count);
}

// Here and below, `scale` is any type that DistanceOf takes.
template <typename AnyScale>
__device__ u64 SumOfList(u32 count, const AnyScale& scale) {
  Shared& shared = OnChip();
  u64 sum = 0;
  for (u32 i = Thread(); i < count; i += kThreads) sum += WeightOf(KeyOfRank(shared.list[i]), scale);
  return SumOfAll(sum);
}

// Returns the length of the shortest prefix of the sorted list that weighs `target` or more; 0 if the list weighs less.
template <typename AnyScale>
__device__ u32 PrefixReaching(u32 count, Threshold target, const AnyScale& scale) {
  Shared& shared = OnChip();
  const u32 each = (count + kThreads - 1) / kThreads;
  const u32 begin = min(Thread() * each, count);
  const u32 end = min(begin + each, count);
  u64 own = 0;
  for (u32 i = begin; i < end; ++i) own += WeightOf(KeyOfRank(shared.list[i]), scale);
  u64 sum = SumUpToThis(own) - own;
  SetCount(0);
  for (u32 i = begin; i < end; ++i) {
    const u64 next = sum + WeightOf(KeyOfRank(shared.list[i]), scale);
    if (Crosses(sum, next, target)) shared.count = i + 1;
    sum = next;
  }
  return CountOf();
}

}  // namespace sortition::kernels::cuda
