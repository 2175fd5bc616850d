// Sums over the tokens as they were sent, group by group, and over the edited tokens.
#include "kernels/cpu/sums.h"

#include <algorithm>
#include <bit>

#include "kernels/cpu/select.h"
#include "kernels/law/row_law.h"

namespace sortition::kernels::cpu {
namespace {

// Returns the sum of the weights of the keys from `floor` on among key_of(group), for each group whose maximum is below
// `level`.
template <typename KeyOf>
uint64_t WeighKeysBelow(const Kernels& kernels, const RowView& row, uint32_t level, uint32_t floor, KeyOf key_of,
                        const RowScale& scale, Scratch* scratch) {
  Candidate* const candidates = scratch->bounds.Reserve(row.groups);
  for (uint32_t group = 0; group < row.groups; ++group) {
    const uint32_t key = key_of(group);
    candidates[group] = Candidate::Of(row.maxima[group] < level && key >= floor ? key : 0, 0);
  }
  return kernels.WeighCandidates(candidates, row.groups, scale, scratch->weights.Reserve(row.groups));
}

// Return what a near sum that is off by `error` at most says of the law's sum, in integers of 1 / `unit`. Twice the
// error leaves room for the roundings here.
uint64_t LowOf(double near, double error, double unit) { return uint64_t(std::max(0.0, (near - error) * unit)); }
uint64_t HighOf(double near, double error, double unit) {
  const double high = (near + 2 * error) * unit;
  return high >= 0x1p64 ? SumBounds::kNoBound : uint64_t(high) + 1;
}

// Returns what a near sum says of the sum over up to `tokens` tokens.
SumBounds BoundsOf(double near, uint32_t tokens) {
  const double error = near * kNearError + tokens * kNearLoss;
  return {LowOf(near, error, 0x1p44), HighOf(near, error, 0x1p44)};
}

}  // namespace

uint64_t WeighList(const Kernels& kernels, std::span<const Candidate> list, const RowScale& scale, Scratch* scratch) {
  if (scale.adapted == nullptr) {
    uint64_t* const weights = scratch->weights.Reserve(list.size());
    return kernels.WeighCandidates(list.data(), uint32_t(list.size()), scale, weights);
  }
  uint64_t sum = 0;
  for (const Candidate& candidate : list) sum += law::Weight(DistanceOfKey(candidate.key(), scale));
  return sum;
}

uint64_t SumOfWeights(const Kernels& kernels, const RowView& row, Candidate last, const RowScale& scale,
                      Scratch* scratch) {
  if (scale.adapted != nullptr) {
    return WeighList(kernels, CollectNotAfter(kernels, row, last, scratch, &scratch->leading), scale, scratch);
  }
  uint32_t* const groups = scratch->groups.Reserve(row.groups);
  const uint32_t floor = std::max(last.key(), scale.first_weighted_key);
  const uint32_t count = kernels.SelectAtLeast(row.maxima, row.groups, floor, groups);
  uint64_t sum = kernels.SumWeights(row, groups, count, last, scale);
  for (const Candidate& candidate : row.edited) {
    if (candidate >= last) sum += law::Weight(DistanceOfKey(candidate.key(), scale));
  }
  return sum;
}

uint64_t WeighKept(const Kernels& kernels, const RowView& row, const RowScale& scale, const Kept& kept,
                   Scratch* scratch) {
  if (!kept.listed.empty()) return WeighList(kernels, kept.listed, scale, scratch);
  return SumOfWeights(kernels, row, kept.last, scale, scratch);
}

SplitSum SplitSumOfWeights(const Kernels& kernels, const RowView& row, uint32_t floor, uint32_t high,
                           const RowScale& scale, Scratch* scratch) {
  uint32_t* const groups = scratch->groups.Reserve(row.groups);
  const uint32_t count = kernels.SelectAtLeast(row.maxima, row.groups, floor, groups);
  SplitSum sum;
  sum.all = kernels.SplitWeights(row, groups, count, floor, high, scale, &sum.above);
  for (const Candidate& candidate : row.edited) {
    if (candidate.key() < floor) continue;
    const uint64_t weight = law::Weight(DistanceOfKey(candidate.key(), scale));
    sum.all += weight;
    if (candidate.key() >= high) sum.above += weight;
  }
  return sum;
}

SumBounds BoundGroupsBelow(const Kernels& kernels, const RowView& row, uint32_t level, const RowScale& scale,
                           Scratch* scratch, uint32_t floor) {
  const auto weigh = [&](auto key_of) { return WeighKeysBelow(kernels, row, level, floor, key_of, scale, scratch); };
  const uint64_t most = weigh([&](uint32_t group) { return row.maxima[group]; });
  SumBounds bounds;
  if (row.reached_from != 0) {
    bounds.low = weigh([&](uint32_t group) {
      const uint32_t key = row.reached[group];
      return key >= row.reached_from || row.sent_words[group] == ~uint64_t{0} ? key : 0;
    });
  } else if (row.reached != row.maxima) {
    bounds.low = weigh([&](uint32_t group) { return row.reached[group]; });
  } else {
    bounds.low = most;
  }
  const bool fits = most <= SumBounds::kNoBound / law::kGroupSize;
  bounds.high = fits ? most * law::kGroupSize : SumBounds::kNoBound;
  return bounds;
}

uint64_t SumOfGroupsFrom(const Kernels& kernels, const RowView& row, uint32_t level, const RowScale& scale,
                         Scratch* scratch, uint32_t floor, uint32_t end) {
  uint32_t* const groups = scratch->groups.Reserve(row.groups);
  uint32_t count = kernels.SelectAtLeast(row.maxima, row.groups, level, groups);
  const auto is_beyond = [&](uint32_t group) { return row.maxima[group] >= end; };
  if (end != ~0u) count = uint32_t(std::remove_if(groups, groups + count, is_beyond) - groups);
  uint64_t sum = kernels.SumWeights(row, groups, count, Candidate::Of(floor, ~0u), scale);
  for (const Candidate& candidate : row.edited) {
    const uint32_t most = row.maxima[candidate.token() / law::kGroupSize];
    if (candidate.key() < floor || most < level || most >= end) continue;
    sum += law::Weight(DistanceOfKey(candidate.key(), scale));
  }
  return sum;
}

LeadingSum SumLeadingGroups(const Kernels& kernels, const RowView& row, uint32_t floor, uint64_t widest, double most,
                            const RowScale& scale, Scratch* scratch) {
  constexpr uint32_t kFew = 16;  // groups, which are always summed
  // A token that is `octaves` below the first one weighs 2^(44 - octaves).
  const uint64_t weight = std::max<uint64_t>(widest / (uint64_t{row.groups} * law::kGroupSize), 1);
  const int octaves = std::countr_zero(law::kUnitWeight / std::bit_floor(weight));
  const uint32_t level = std::max(floor, FirstKeyWithin(law::MakeBound(uint32_t(octaves) << 26), row.max_key, scale));
  uint32_t* const groups = scratch->groups.Reserve(row.groups);
  const uint32_t weighted = std::max(floor, scale.first_weighted_key);
  const double all = kernels.SelectAtLeast(row.maxima, row.groups, weighted, groups);
  if (kernels.SelectAtLeast(row.maxima, row.groups, level, groups) > kFew + most * all) return {};
  const SumBounds rest = BoundGroupsBelow(kernels, row, level, scale, scratch, floor);
  return {level, rest, SumOfGroupsFrom(kernels, row, level, scale, scratch, floor)};
}

SplitBounds BoundAllWeights(const Kernels& kernels, const RowView& row, Candidate end, const RowScale& scale,
                            Scratch* scratch, uint32_t floor) {
  if (!HasNearWeights(scale)) return {};
  const Candidate last = Candidate::Of(floor, ~0u);
  uint32_t* const groups = scratch->groups.Reserve(row.groups);
  const uint32_t least = std::max(floor, scale.first_weighted_key);
  const uint32_t count = kernels.SelectAtLeast(row.maxima, row.groups, least, groups);
  const NearSums near = kernels.NearWeights(row, groups, count, end, scale);
  uint64_t edited = 0;
  uint64_t edited_before = 0;
  for (const Candidate& candidate : row.edited) {
    if (candidate < last) continue;
    const uint64_t weight = law::Weight(DistanceOfKey(candidate.key(), scale));
    edited += weight;
    if (candidate > end) edited_before += weight;
  }
  const uint32_t tokens = count * law::kGroupSize;
  SplitBounds sums = {BoundsOf(near.all, tokens).Plus(edited), BoundsOf(near.before, tokens).Plus(edited_before)};
  if (floor != 1) sums.all.low = sums.before.low;  // the groups have other tokens
  return sums;
}

MomentBounds BoundMoments(const Kernels& kernels, const RowView& row, uint32_t level, const RowScale& scale,
                          MomentsWanted wanted, Scratch* scratch) {
  constexpr uint32_t kMomentsFallFrom = 3u << 25;  // 1.5 octaves
  constexpr double kSumUnit = 0x1p44;
  constexpr double kOtherUnit = 0x1p42;
  uint32_t* const groups = scratch->groups.Reserve(row.groups);
  const uint32_t count = kernels.SelectAtLeast(row.maxima, row.groups, level, groups);
  const NearMomentSums least = kernels.NearMoments(row, groups, count, scale, wanted);
  const NearMomentSums rest = kernels.NearMomentsOfKeys(row.maxima, row.groups, level, scale, wanted);
  const NearMomentSums most = {least.sum + law::kGroupSize * rest.sum, least.other + law::kGroupSize * rest.other};
  const uint32_t tokens = row.groups * law::kGroupSize;
  const bool falls =
      wanted != MomentsWanted::kMoment || DistanceOfKey(std::min(level, row.max_key), scale) >= kMomentsFallFrom;
  MomentBounds bounds;
  bounds.sum.low = LowOf(least.sum, NearSumError(least, tokens), kSumUnit);
  bounds.sum.high = HighOf(most.sum, NearSumError(most, tokens), kSumUnit);
  bounds.other.low = LowOf(least.other, NearOtherError(least, tokens, wanted), kOtherUnit);
  if (falls) bounds.other.high = HighOf(most.other, NearOtherError(most, tokens, wanted), kOtherUnit);
  for (const Candidate& candidate : row.edited) {
    if (row.maxima[candidate.token() / law::kGroupSize] < level) continue;
    const uint32_t t = DistanceOfKey(candidate.key(), scale);
    bounds.sum = bounds.sum.Plus(law::Weight(t));
    if (wanted == MomentsWanted::kMoment) bounds.other = bounds.other.Plus(law::Moment(t));
    if (wanted == MomentsWanted::kSquare) bounds.other = bounds.other.Plus(law::SquaredWeight(t));
  }
  return bounds;
}

uint32_t NumberOfTokens(const Kernels& kernels, const RowView& row, Candidate last, Scratch* scratch) {
  uint32_t* const groups = scratch->groups.Reserve(row.groups);
  const uint32_t count = kernels.SelectAtLeast(row.maxima, row.groups, last.key(), groups);
  uint32_t number = kernels.CountTokens(row, groups, count, last);
  for (const Candidate& candidate : row.edited) number += candidate >= last;
  return number;
}

}  // namespace sortition::kernels::cpu
