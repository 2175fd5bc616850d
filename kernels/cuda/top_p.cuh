// Top-p alone, race first. The winner of the race among all tokens also wins among those that top-p keeps, if it is one
// of them: if the weights of the tokens before it do not reach the threshold. So the row's sum has only to be known as
// precisely as this decision is close (kernels/law/LAW.md, section 6).
#pragma once

#include "kernels/cuda/race.cuh"
#include "kernels/cuda/sums.cuh"

namespace sortition::kernels::cuda {

// The most groups that one block weighs.
constexpr u32 kMostWeighedGroups = 256;

struct Ruling {
  u32 step;      // RowState::top_p_step; kStepRow: the bounds leave it open
  bool is_kept;  // the winner
  SumBounds sum;
};

// Tells whether top-p keeps `winner` among the tokens with a key >= `floor`.
__device__ __noinline__ Ruling RuleByBounds(const Row& row, const View& view, u32 floor, u64 winner,
                                            const Scale& scale) {
  const u32 top_p = OnChip().input.top_p;
  u16* const list = row.group_list();
  const auto list_from = [&](u32 level) {
    return ListGroups(row, list, [&](u32 group) { return view.maxima[group] >= level; });
  };
  const Ruling open = {kStepRow, false, {}};
  u32 level = KeyOfRank(winner);
  u32 count = list_from(level);
  if (count > kMostWeighedGroups) return open;
  SplitSum own = WeighGroups(row, view, list, count, floor, winner, scale);
  const auto rule = [&](u32 step, SumBounds sum) -> Ruling {
    if (!Reaches(own.before, TopPThreshold(sum.low, top_p))) return {step, true, sum};
    if (Reaches(own.before, TopPThreshold(sum.high, top_p))) return {step, false, sum};
    return open;
  };
  if (!Reaches(own.before, TopPThreshold(own.all, top_p))) return {kStepGroups, true, {}};
  const Ruling by_maxima = rule(kStepMaxima, BoundsOf(own.all, WeighMaxima(row, view, floor, level, scale)));
  if (by_maxima.step != kStepRow) return by_maxima;

  level = BoundOfNth(row, view, kLeadingGroups, RankOf(floor, kNone));
  if (level >= KeyOfRank(winner)) return open;
  const u64 rest = WeighMaxima(row, view, floor, level, scale);
  // Bounds that are further apart than that seldom decide.
  if (rest > own.all / (16 * kGroupSize)) return open;
  count = list_from(level);
  if (count > kMostWeighedGroups) return open;  // many tie
  own = WeighGroups(row, view, list, count, floor, winner, scale);
  return rule(kStepLeading, BoundsOf(own.all, rest));
}

// Draws with top-p among the tokens with a key >= `floor`, and leaves the drawn token's rank in `*winner`. Returns the
// step that ruled. With kStepRow `*winner` is drawn if top-p keeps it. Needs the groups' noise.
__device__ __noinline__ u32 DrawByBounds(const Row& row, const View& view, u32 max_key, u32 floor, const Scale& scale,
                                         u64* winner) {
  const ByDistance<Scale> entry = {scale};
  const DrawKey draw = KeyOfDraw(OnChip().input);
  *winner = RaceOfRow(row, view, RankOf(floor, kNone), max_key, entry, draw);
  const Ruling ruling = RuleByBounds(row, view, floor, *winner, scale);
  if (ruling.is_kept || ruling.step == kStepRow) return ruling.step;

  // The kept tokens are before the winner.
  const u32 count = Collect(row, view, *winner + 1);
  if (count > kMostListed) return kStepRow;
  SortList(count);
  const u32 top_p = OnChip().input.top_p;
  const u32 most = PrefixReaching(count, TopPThreshold(ruling.sum.high, top_p), scale);
  const u32 least = PrefixReaching(count, TopPThreshold(ruling.sum.low, top_p), scale);
  *winner = RaceOfList(most, entry, draw);
  return *winner >= OnChip().list[least - 1] ? ruling.step | kStepDropped : kStepRow;
}

// Draws with top-p among the tokens from `last`, which weigh `sum`. `winner` is drawn if top-p keeps it, and the tokens
// before it weigh `before`. Returns the drawn token's rank. Needs the groups' noise.
__device__ __noinline__ u64 DrawBySum(const Row& row, const View& view, u64 last, const Scale& scale, u64 winner,
                                      u64 before, u64 sum) {
  const Threshold threshold = TopPThreshold(sum, OnChip().input.top_p);
  if (!Reaches(before, threshold)) return winner;
  const ByDistance<Scale> entry = {scale};
  const DrawKey draw = KeyOfDraw(OnChip().input);
  const u32 max_key = row.state.max_key;
  const u32 count = ListPrefix(row, view, threshold, last, scale);
  if (count != 0) return RaceOfList(count, entry, draw);
  // The next winner among the tokens before this one takes less time than the end of what is kept. A caller that knows
  // the noise can make rows with many such winners, so that is found after a few.
  constexpr u32 kMostRulings = 3;
  for (u32 rulings = 0; rulings < kMostRulings; ++rulings) {
    winner = RaceOfRow(row, view, winner + 1, max_key, entry, draw);
    if (!Reaches(MassFrom(row, view, winner + 1, scale).sum, threshold)) return winner;
  }
  return RaceOfRow(row, view, EndOfPrefix(row, view, threshold, last, scale), max_key, entry, draw);
}

}  // namespace sortition::kernels::cuda
