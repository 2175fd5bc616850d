// The kept tokens of a row after a chain: a run of the law's order, which becomes a list on chip once it is short.
//
// Every thread of the block has the same Chain and calls these functions at the same place.
#pragma once

#include "kernels/cuda/filter.cuh"

namespace sortition::kernels::cuda {

struct Chain {
  const Row& row;
  View view;    // view of the changed row; it hides the tokens before the first kept one
  u32 max_key;  // the first kept token's
  u64 last;     // rank of the last kept token, or any rank after it and before every token that is not kept
  u32 listed;   // number of kept tokens in the list, in order; 0: not listed. A list decides which tokens are kept.
  Shape shape;
  u64 state;  // the sampler's state before the draw
};

// The groups' largest keys, in memory that a chain may change. The raw row keeps its own.
__device__ inline u32* OwnMaxima(const Row& row) {
  if (row.groups <= kSharedGroups) return OnChip().maxima;
  return row.scratch + (row.IsVisibleInPart() ? row.layout.maxima : row.layout.raw_maxima);
}

__device__ inline View OpenOwnView(const Row& row) {
  View view = OpenView(row, false);
  u32* const own = OwnMaxima(row);
  if (own == view.maxima) return view;
  for (u32 i = Thread(); i < row.groups; i += kThreads) own[i] = view.maxima[i];
  __syncthreads();
  view.maxima = own;
  return view;
}

// Calls visit(rank) for every kept token.
template <typename Visit>
__device__ void VisitKept(const Chain& chain, Visit visit) {
  if (chain.listed == 0) return VisitFrom(chain.row, chain.view, chain.last, visit);
  for (u32 i = Thread(); i < chain.listed; i += kThreads) visit(OnChip().list[i]);
}

// Returns the index of the first rank in the sorted list that is at most `rank`; `count` if there is none.
__device__ inline u32 FirstAtMost(const u64* list, u32 count, u64 rank) {
  u32 low = 0;
  u32 high = count;
  while (low < high) {
    const u32 middle = low + (high - low) / 2;
    if (list[middle] > rank) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// `rank` is the view's; its key is not 0.
__device__ inline bool IsKept(const Chain& chain, u64 rank) {
  if (chain.listed == 0) return rank >= chain.last;
  const u32 at = FirstAtMost(OnChip().list, chain.listed, rank);
  return at < chain.listed && OnChip().list[at] == rank;
}

__device__ inline void Rescale(Chain& chain) { chain.shape.scale = ScaleFrom(KeyBits(chain.max_key), chain.shape); }

// Lists the kept tokens if they are few enough.
__device__ __noinline__ void ListIfShort(Chain& chain) {
  const Row& row = chain.row;
  // Each group that reaches the last kept key has at least one kept token.
  u32 reaching = 0;
  for (u32 i = Thread(); i < row.groups; i += kThreads) reaching += chain.view.maxima[i] >= KeyOfRank(chain.last);
  if (CountOfAll(reaching) > kMostListed) return;
  const u32 count = Collect(row, chain.view, chain.last);
  if (count > kMostListed) return;
  SortList(count);
  chain.listed = count;
}

// Drops the tokens after `last`; the first kept token stays.
__device__ inline void KeepNotAfter(Chain& chain, u64 last) {
  chain.last = max(chain.last, last);
  if (chain.listed == 0) return ListIfShort(chain);
  chain.listed = FirstAtMost(OnChip().list, chain.listed, last - 1);
}

__device__ inline void KeepFrom(Chain& chain, u32 floor) { KeepNotAfter(chain, RankOf(floor, kNone)); }

// Drops the tokens that are not within the bound.
__device__ inline void KeepWithin(Chain& chain, Bound bound) {
  KeepFrom(chain, FirstKeyWithin(kCutWithin, bound, chain.max_key, chain.shape));
}

__device__ __noinline__ void KeepFirst(Chain& chain, u32 count) {
  const Row& row = chain.row;
  if (chain.listed != 0) {
    chain.listed = min(chain.listed, count);
  } else if (count <= kMostListed) {
    chain.listed = SelectFirst(row, chain.view, count, chain.last);
  } else if (CountFrom(row, chain.view, chain.last) > count) {
    chain.last = EndOfFirst(row, chain.view, count, chain.last);
  }
}

__device__ inline void KeepOf(Chain& chain, const Kept& kept) {
  if (kept.listed == 0) return KeepNotAfter(chain, kept.last);
  chain.listed = kept.listed;
}

// Returns the row's own bitmap of visible tokens, in which tokens can be hidden.
__device__ inline u32* OwnVisible(Chain& chain) {
  const Row& row = chain.row;
  u32* const own = row.visible_words();
  if (chain.view.visible == own) return own;
  for (u32 i = Thread(); i < (OnChip().input.vocabulary + 31) / 32; i += kThreads) {
    own[i] = chain.view.visible == nullptr ? 0xffffffffu : chain.view.visible[i];
  }
  __syncthreads();
  chain.view.visible = own;
  return own;
}

// Drops the kept tokens whose rank is at least `limit`. At least one token stays.
__device__ __noinline__ void DropFrom(Chain& chain, u64 limit) {
  const Row& row = chain.row;
  Shared& shared = OnChip();
  if (chain.listed != 0) {
    const u32 dropped = FirstAtMost(shared.list, chain.listed, limit - 1);
    chain.listed -= dropped;
    for (u32 base = 0; base < chain.listed; base += kThreads) {
      const u32 i = base + Thread();
      const u64 rank = i < chain.listed ? shared.list[i + dropped] : 0;
      __syncthreads();
      if (i < chain.listed) shared.list[i] = rank;
      __syncthreads();
    }
    chain.max_key = KeyOfRank(shared.list[0]);
    return Rescale(chain);
  }
  u32* const visible = OwnVisible(chain);
  u32* const maxima = OwnMaxima(row);
  u16* const list = row.group_list();
  const u32 count = ListGroups(row, list, [&](u32 group) { return maxima[group] >= KeyOfRank(limit); });
  for (u32 i = Thread(); i < count; i += kThreads) maxima[list[i]] = 0;
  __syncthreads();
  // Each thread clears the bits of the tokens that it visits. Threads share words, so loads must be allowed to run
  // together with the atomics.
  const volatile u32* const shared_words = visible;
  VisitVisible(shared_words, list, count, [&](u32 key, u32 token) {
    if (RankOf(key, token) >= limit) {
      atomicAnd(&visible[token / 32], ~(1u << (token % 32)));
    } else {
      atomicMax(&maxima[token / kGroupSize], key);
    }
  });
  for (u32 i = Thread(); i < chain.view.edit_count; i += kThreads) {
    if (RankOf(row.edit_keys()[i], shared.input.edits[i].token) >= limit) row.edit_keys()[i] = 0;
  }
  __syncthreads();
  chain.max_key = LargestKey(row, chain.view);
  Rescale(chain);
}

// Returns the sums over the kept tokens that the law calls `what`, except kSumLevels and kSumFallOff.
__device__ __noinline__ StageSums SumKept(const Chain& chain, u32 what) {
  if (what == kSumNothing) return NoSums();
  StageSums sums = NoSums();
  VisitKept(chain, [&](u64 rank) { sums = WithDistance(sums, what, DistanceOf(KeyOfRank(rank), chain.shape)); });
  sums.count = CountOfAll(sums.count);
  sums.first = SumOfAll(sums.first);
  sums.second = SumOfAll(sums.second);
  return sums;
}

}  // namespace sortition::kernels::cuda
