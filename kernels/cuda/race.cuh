// The draw: the law's grouped race, run only where it can still be won.
//
// A group's owner, at the distance of the group's largest key, bounds the race keys of all of its tokens from below; at
// a token's own distance, that token's. So only groups and tokens whose bound does not lose to the best token so far
// race. Groups with the smallest bounds go first, so that a good token is found early. Bounds prune; they decide
// nothing.
#pragma once

#include <type_traits>

#include "kernels/cuda/filter.cuh"
#include "kernels/cuda/kept.cuh"
#include "kernels/cuda/noise.cuh"
#include "kernels/cuda/read.cuh"

namespace sortition::kernels::cuda {

constexpr i64 kNever = 0x7fffffffffffffff;

// A race gives each token's lag (kernels/law/functions/race.inc). Here it follows from the token's distance.
template <typename AnyScale>
struct ByDistance {
  const AnyScale scale;
  // true: inlines the bounds' code in every loop that runs it. For rare races this would only cost space.
  static constexpr bool kIsInline = std::is_same_v<AnyScale, Scale>;

  // Returns kNever for a token that does not race.
  __device__ i64 LagOf(u64 rank) const { return LagOfDistance(DistanceOf(KeyOfRank(rank), scale)); }
  // Returns the least lag of the tokens whose keys are at most `key`.
  __device__ i64 LeastLagOf(u32 key) const { return LagOfDistance(LeastDistance(key, scale)); }

 private:
  __device__ static i64 LagOfDistance(u32 t) { return t == kDead ? kNever : i64(Lag(t)); }
};

// Returns the token's race key; kNever if it does not race or the key is above `best`.
template <typename Entry>
__device__ inline i64 RaceKeyOf(u64 rank, const Entry& entry, const DrawKey& draw, i64 best) {
  const u32 token = TokenOfRank(rank);
  const i64 lag = entry.LagOf(rank);
  if (lag == kNever) return kNever;
  const u32 group = token / kGroupSize;
  const u64 word = WordOf(NoiseWords(group / 2, kGroupTag, draw), group);
  const u64 a = NegLog2(Uniform(word));
  // The key that the owner would have with this lag. The token's own is not smaller.
  i64 race_key = lag + i64(OwnerLog(a));
  if (race_key <= best && Owner(word) != token % kGroupSize) {
    const u64 b = NegLog2(Uniform(WordOf(NoiseWords(token / 2, kTokenTag, draw), token)));
    race_key = lag + i64(OtherLog(a, b));
  }
  return race_key <= best ? race_key : kNever;
}

// A thread's, or the block's, best token so far.
template <typename Entry>
class Race {
 public:
  __device__ Race(const Entry& entry, const DrawKey& draw) : entry_(entry), draw_(draw) {}

  __device__ i64 best() const { return best_; }
  __device__ u64 winner() const { return winner_; }

  __device__ void Run(u64 rank) {
    const i64 race_key = RaceKeyOf(rank, entry_, draw_, best_);
    // Equal race keys: the lower id wins.
    if (race_key == kNever || (race_key == best_ && TokenOfRank(rank) >= TokenOfRank(winner_))) return;
    best_ = race_key;
    winner_ = rank;
  }

  __device__ __noinline__ void RunOutOfLine(u64 rank) { Run(rank); }

  // Makes the best token of all threads every thread's best.
  __device__ void Share() {
    ShareInWarp();
    __syncthreads();
    if (Lane() == 0) {
      OnChip().warp_values[Warp()] = u64(best_);
      OnChip().warp_ranks[Warp()] = winner_;
    }
    __syncthreads();
    best_ = i64(OnChip().warp_values[Lane() % kWarps]);
    winner_ = OnChip().warp_ranks[Lane() % kWarps];
    ShareInWarp();
  }

 private:
  __device__ void ShareInWarp() {
    const u32 high = High(u64(best_)) ^ 0x80000000u;
    const u32 least_high = ~__reduce_max_sync(kAllLanes, ~high);
    const u32 least_low = ~__reduce_max_sync(kAllLanes, high == least_high ? ~Low(u64(best_)) : 0);
    const i64 best = i64(Make64(least_low, least_high ^ 0x80000000u));
    const u32 lowest_id = __reduce_max_sync(kAllLanes, best_ == best ? Low(winner_) : 0);
    const bool is_winner = best_ == best && Low(winner_) == lowest_id;
    winner_ = Make64(lowest_id, __reduce_max_sync(kAllLanes, is_winner ? High(winner_) : 0));
    best_ = best;
  }

  const Entry& entry_;
  const DrawKey& draw_;
  i64 best_ = kNever;
  u64 winner_ = 0;  // a rank; 0 has the largest token
};

// Returns a bound of the race keys of a group's tokens with keys of at most `key`; kNoBound if none of them may race.
template <typename Entry>
__device__ u32 BoundOfKey(const Entry& entry, u32 key, u32 noise) {
  const i64 lag = entry.LeastLagOf(key);
  return lag == kNever ? kNoBound : Behind(noise, lag);
}
template <typename Entry>
__device__ __noinline__ u32 BoundOutOfLine(const Entry& entry, u32 key, u32 noise) {
  return BoundOfKey(entry, key, noise);
}

// Where groups' bounds stand: on chip if they fit.
__device__ inline u32* BoundsOf(const Row& row) {
  return row.groups <= kSharedGroups ? OnChip().racing.bounds : row.noise() + row.groups;
}

// Returns the winner among all tokens up to `last` in order, 0 if none may race. The groups' noise has been made.
// Leaves no list.
template <typename Entry>
__device__ __noinline__ u64 RaceOfRow(const Row& row, const View& view, u64 last, u32 max_key, const Entry& entry,
                                      const DrawKey& draw) {
  constexpr u32 kFewGroups = 64;
  Shared& shared = OnChip();
  // A copy, so that it stays in registers during the loops.
  const std::conditional_t<Entry::kIsInline, Entry, const Entry&> own_entry = entry;
  const u32* const noise = row.noise();
  const auto bound_of = [&](u32 key, u32 group) {
    if constexpr (Entry::kIsInline) return BoundOfKey(own_entry, key, noise[group]);
    return BoundOutOfLine(own_entry, key, noise[group]);
  };
  u32* const bounds = BoundsOf(row);
  const u32* const maxima = view.maxima;
  const u32 groups = row.groups;
  u32 least = kNoBound;
  u32 ties = 0;
  __syncthreads();
  for (u32 i = Thread(); i < groups; i += kThreads) {
    const u32 key = maxima[i];
    const u32 bound = key >= KeyOfRank(last) ? bound_of(key, i) : kNoBound;
    bounds[i] = bound;
    least = min(least, bound);
    ties += key == max_key;
  }
  VisitEdited(row, view, [&](u32 key, u32 token) {
    if (RankOf(key, token) >= last) least = min(least, bound_of(key, token / kGroupSize));
  });
  least = ~MaxOfAll(~least);

  // First the group with the least bound, and one with a likeliest token, because the first one's owner may be masked.
  const u32 likely_key = CountOfAll(ties) <= kWarps ? max_key : kNone;
  u16* const list = row.survivor_list();
  u32 count = ListGroups(row, list, [&](u32 group) { return bounds[group] <= least || maxima[group] == likely_key; });
  u32 reach = least;
  u32 reach_of_tokens = least + min(8 * kBoundOctave, ~least);
  Race<Entry> race(entry, draw);
  for (u32 octaves = 2;; octaves *= 2) {
    // The tokens within reach form a list, so that the race has no idle lanes.
    SetCount(0);
    const auto collect = [&](u32 key, u32 token) {
      const u64 rank = RankOf(key, token);
      if (rank < last || bound_of(key, token / kGroupSize) > reach_of_tokens) return;
      const u32 place = atomicAdd(&shared.count, 1u);
      if (place < kRacers) {
        shared.racing.racers[place] = rank;
      } else {
        race.RunOutOfLine(rank);
      }
    };
    VisitGroups(view, list, count, collect);
    VisitEdited(row, view, collect);
    const u32 racers = min(CountOf(), kRacers);
    for (u32 i = Thread(); i < racers; i += kThreads) race.Run(shared.racing.racers[i]);
    race.Share();
    // No token beyond the best one's bound can win. Where many groups are within it, nearer ones go first, in steps.
    const u32 best = race.best() == kNever ? kNoBound - 1 : BoundOf(race.best());
    if (reach >= best) return race.winner();
    reach = best;
    const auto within = [&](u32 group) { return bounds[group] <= reach; };
    count = ListGroups(row, list, within);
    if (count > kFewGroups && octaves <= 64) {
      reach = min(reach, least + min(octaves * kBoundOctave, ~least));
      count = ListGroups(row, list, within);
    }
    reach_of_tokens = reach;
  }
}

template <typename Entry>
__device__ __noinline__ u64 RaceOfList(u32 count, const Entry& entry, const DrawKey& draw) {
  Shared& shared = OnChip();
  if (count == 1) return shared.list[0];
  Race<Entry> race(entry, draw);
  for (u32 i = Thread(); i < count; i += kThreads) race.Run(shared.list[i]);
  race.Share();
  return race.winner();
}

// Returns the kept token with the smallest race key. Unlisted tokens need kFlagOpenRace.
__device__ inline u64 Draw(const Row& row, const View& view, const Kept& kept, u32 max_key, const Scale& scale) {
  const ByDistance<Scale> entry = {scale};
  const DrawKey draw = KeyOfDraw(OnChip().input);
  return kept.listed != 0 ? RaceOfList(kept.listed, entry, draw)
                          : RaceOfRow(row, view, kept.last, max_key, entry, draw);
}

// Returns the token with the smallest race key that a chain has kept; 0 if none may race.
template <typename Entry>
__device__ u64 DrawKept(const Chain& chain, const Entry& entry, const DrawKey& draw) {
  const Row& row = chain.row;
  if (chain.listed != 0) return RaceOfList(chain.listed, entry, draw);
  MakeNoise(row, draw, 0, row.groups);
  __syncthreads();
  return RaceOfRow(row, chain.view, chain.last, chain.max_key, entry, draw);
}

}  // namespace sortition::kernels::cuda
