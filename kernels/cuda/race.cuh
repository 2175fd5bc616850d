// The draw: the law's grouped race, run only where it can still be won.
//
// A group's owner, at the distance of the group's largest key, bounds the race keys of all of its tokens from below. So
// only groups whose bound does not lose to the best token so far are expanded. Groups with the smallest bounds go
// first, so that a good token is found early. Bounds prune; they decide nothing.
#pragma once

#include <type_traits>

#include "kernels/cuda/filter.cuh"
#include "kernels/cuda/kept.cuh"
#include "kernels/cuda/read.cuh"

namespace sortition::kernels::cuda {

constexpr i64 kNever = 0x7fffffffffffffff;
constexpr i64 kOctave = i64{1} << 32;  // of a race key

// A race gives each token's lag (kernels/law/functions/race.inc). Here it follows from the token's distance.
template <typename AnyScale>
struct ByDistance {
  const AnyScale scale;
  // true: inlines the race's code in every loop that runs it. For rare races this would only cost space.
  static constexpr bool kIsInline = std::is_same_v<AnyScale, Scale>;

  // Returns kNever for a token that does not race.
  __device__ i64 LagOf(u64 rank) const { return LagOfDistance(DistanceOf(KeyOfRank(rank), scale)); }
  // Returns the least lag of the tokens whose keys are at most `key`.
  __device__ i64 LeastLagOf(u32 key) const { return LagOfDistance(LeastDistance(key, scale)); }

 private:
  __device__ static i64 LagOfDistance(u32 t) { return t == kDead ? kNever : i64(Lag(t)); }
};

// A thread's, or the block's, best token so far.
template <typename Entry>
class Race {
 public:
  __device__ Race(const Entry& entry, const DrawKey& draw) : entry_(entry), draw_(draw) {}

  __device__ i64 best() const { return best_; }
  __device__ u64 winner() const { return winner_; }

  // Lets a token race. Consecutive calls for tokens of one group compute the noise of the group once.
  __device__ void Run(u64 rank) {
    if constexpr (Entry::kIsInline) {
      Enter(rank);
    } else {
      EnterOutOfLine(rank);
    }
  }

  // Makes the best token of all threads every thread's best.
  __device__ void Share() {
    for (u32 step = 16; step > 0; step /= 2) {
      Take(__shfl_xor_sync(kAllLanes, best_, step), __shfl_xor_sync(kAllLanes, winner_, step));
    }
    __syncthreads();
    if (Lane() == 0) {
      OnChip().warp_values[Warp()] = u64(best_);
      OnChip().warp_ranks[Warp()] = winner_;
    }
    __syncthreads();
    for (u32 warp = 0; warp < kWarps; ++warp) Take(i64(OnChip().warp_values[warp]), OnChip().warp_ranks[warp]);
  }

 private:
  __device__ __noinline__ void EnterOutOfLine(u64 rank) { Enter(rank); }

  __device__ void Enter(u64 rank) {
    const u32 token = TokenOfRank(rank);
    const i64 lag = entry_.LagOf(rank);
    if (lag == kNever) return;
    if (token / kGroupSize != group_) {
      group_ = token / kGroupSize;
      group_word_ = WordOf(NoiseWords(group_ / 2, kGroupTag, draw_), group_);
      a_ = NegLog2(Uniform(group_word_));
      owner_log_ = OwnerLog(a_);
    }
    // The race key that the owner would have with this lag. The token's own is not smaller.
    i64 race_key = lag + i64(owner_log_);
    if (race_key > best_) return;
    if (Owner(group_word_) != token % kGroupSize) {
      const u64 b = NegLog2(Uniform(WordOf(NoiseWords(token / 2, kTokenTag, draw_), token)));
      race_key = lag + i64(OtherLog(a_, b));
    }
    // Equal race keys: the lower id wins.
    if (race_key > best_ || (race_key == best_ && token >= TokenOfRank(winner_))) return;
    best_ = race_key;
    winner_ = rank;
  }

  __device__ void Take(i64 race_key, u64 rank) {
    if (race_key > best_ || (race_key == best_ && TokenOfRank(rank) >= TokenOfRank(winner_))) return;
    best_ = race_key;
    winner_ = rank;
  }

  const Entry entry_;
  const DrawKey draw_;
  i64 best_ = kNever;
  u64 winner_ = 0;  // a rank; 0 has the largest token
  u32 group_ = kNone;
  u64 group_word_ = 0;
  u64 a_ = 0;
  u64 owner_log_ = 0;
};

// Returns the smallest bound of any group. Overwrites each group's noise with its bound.
template <typename Entry>
__device__ i64 BoundGroups(const Row& row, const View& view, u64 last, const Entry& entry) {
  const u32 floor = KeyOfRank(last);
  i64 least = kNever;
  for (u32 i = Thread(); i < row.groups; i += kThreads) {
    const u32 key = view.maxima[i];
    const i64 lag = key >= floor ? entry.LeastLagOf(key) : kNever;
    const i64 bound = lag == kNever ? kNever : lag + row.noise()[i];
    row.noise()[i] = bound;
    least = min(least, bound);
  }
  return MinOfAll(least);
}

// Runs the race of the groups with a bound of at most `most`; the first call adds those with the maximum `likely_key`.
// No group races twice.
template <typename Entry>
__device__ void ExpandGroups(const Row& row, const View& view, u64 last, i64 most, u32 likely_key, Race<Entry>* race) {
  i64* const bounds = row.noise();
  u16* const list = row.survivor_list();
  const u32 count = ListGroups(row, list, [&](u32 group) {
    const i64 bound = bounds[group];
    if (bound == kNever || (bound > most && view.maxima[group] != likely_key)) return false;
    bounds[group] = kNever;
    return true;
  });
  VisitGroups(view, list, count, [&](u32 key, u32 token) {
    const u64 rank = RankOf(key, token);
    if (rank >= last) race->Run(rank);
  });
}

// Returns the winner among all tokens up to `last` in order, 0 if none may race. The groups' noise has been made.
template <typename Entry>
__device__ __noinline__ u64 RaceOfRow(const Row& row, const View& view, u64 last, u32 max_key, const Entry& entry,
                                      const DrawKey& draw) {
  Race<Entry> race(entry, draw);
  const i64 least = BoundGroups(row, view, last, entry);
  VisitEdited(row, view, [&](u32 key, u32 token) {
    const u64 rank = RankOf(key, token);
    if (rank >= last) race.Run(rank);
  });
  race.Share();
  // Begins with the group of the smallest bound, and with one that has a likeliest token, because the first one's owner
  // may be masked. Then takes bounds in steps of octaves until the next one cannot win.
  u32 ties = 0;
  for (u32 i = Thread(); i < row.groups; i += kThreads) ties += view.maxima[i] == max_key;
  const bool is_likely_few = CountOfAll(ties) <= kWarps;
  i64 reach = least;
  for (u32 octaves = 0; least != kNever; octaves = max(2u, 2 * octaves)) {
    const bool is_end = octaves != 0 && (octaves > 256 || race.best() <= least + octaves * kOctave);
    reach = is_end ? race.best() : least + octaves * kOctave;
    ExpandGroups(row, view, last, reach, octaves == 0 && is_likely_few ? max_key : 0, &race);
    race.Share();
    if (is_end) break;
  }
  return race.winner();
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
