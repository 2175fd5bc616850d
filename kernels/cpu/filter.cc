// Each filter keeps a prefix of the order, so the next one starts from its end. Top-p finds the prefix's end without
// sorting the vocabulary.
#include "kernels/cpu/filter.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "kernels/check.h"
#include "kernels/cpu/select.h"
#include "kernels/cpu/sums.h"
#include "kernels/law/row_law.h"

namespace sortition::kernels::cpu {
namespace {

constexpr uint32_t kLeading = 256;
constexpr uint32_t kMostLeading = 4 * kLeading;  // equal tokens may be many more; the row's sum takes less time then
constexpr size_t kSample = 2048;

// Moves the shortest prefix whose weights reach `threshold` to the front and returns it. `weights` are the candidates';
// together they reach it.
std::span<Candidate> PrefixReaching(const Kernels& kernels, law::Threshold threshold, std::span<Candidate> candidates,
                                    const uint64_t* weights) {
  const auto count = uint32_t(candidates.size());
  const Candidate last = kernels.LastReaching(candidates.data(), weights, count, threshold);
  return candidates.first(kernels.MoveNotAfter(candidates.data(), count, last));
}

// Keys around the threshold's crossing: the tokens with a key >= low reach it, those with a key >= high do not. The
// first bracket is guessed.
struct Bracket {
  uint32_t low;
  uint32_t high;
  uint64_t from_low;   // the sum of the weights of the tokens with a key >= low
  uint64_t from_high;  // likewise
};

// The share of the weights in the bracket that a prefix still needs after those above it.
double ShareLeft(law::Threshold threshold, const Bracket& bracket) {
  const uint64_t left = law::LeastSum(law::Remaining(threshold, bracket.from_high));
  return double(left) / double(bracket.from_low - bracket.from_high);
}

// Two keys that probably lie close to the crossing, on either side of it; low <= first < second <= high. `sample` has
// tokens between these two. `share`: of their weights, which the prefix needs.
std::pair<uint32_t, uint32_t> Guess(const Kernels& kernels, uint32_t low, uint32_t high, double share,
                                    std::span<const Candidate> sample, const RowScale& scale, Scratch* scratch) {
  const auto count = uint32_t(sample.size());
  uint64_t* const weights = scratch->weights.Reserve(count);
  const uint64_t sum = kernels.WeighCandidates(sample.data(), count, scale, weights);
  if (sum == 0) return {low, high};
  const auto needed = uint64_t(std::clamp(share, 0.0, 1.0) * double(sum));
  const law::Threshold guess = law::MakeThreshold(std::clamp(needed, uint64_t{1}, sum));
  const Candidate crossing = kernels.LastReaching(sample.data(), weights, count, guess);
  const auto index = uint32_t(std::count_if(sample.begin(), sample.end(), [&](Candidate c) { return c >= crossing; }));
  // Three times the deviation of the crossing's place in a sample, so the bracket seldom misses it.
  const auto margin = 2 + uint32_t(3 * std::sqrt(double(index) * double(count - index) / double(count)));
  const uint32_t first =
      index + margin <= count ? kernels.NthCandidate(sample.data(), count, index + margin).key() : low;
  const uint32_t second = index > margin ? kernels.NthCandidate(sample.data(), count, index - margin).key() : high;
  return {first, std::max(second, first + 1)};
}

Kept CrossingToken(const Kernels& kernels, uint32_t top_p, uint32_t floor, Bracket bracket, double share, Sample sample,
                   const RowView& row, const RowScale& scale, Scratch* scratch) {
  std::optional<law::Threshold> threshold;
  for (;;) {
    const auto [first, second] = Guess(kernels, bracket.low, bracket.high, share, sample.candidates, scale, scratch);
    uint64_t from_second;
    if (threshold) {
      from_second = SumOfWeights(kernels, row, Candidate::Of(second, ~0u), scale, scratch);
    } else {
      const SplitSum sum = SplitSumOfWeights(kernels, row, floor, second, scale, scratch);
      threshold = law::TopPThreshold(sum.all, top_p);
      from_second = sum.above;
      bracket.from_low = sum.all;
    }
    const std::span<Candidate> between = CollectBetween(kernels, row, first, second, scratch, &scratch->kept);
    const auto count = uint32_t(between.size());
    uint64_t* const weights = scratch->weights.Reserve(count);
    const uint64_t from_first = from_second + kernels.WeighCandidates(between.data(), count, scale, weights);
    if (law::Crosses(from_second, from_first, *threshold)) {
      Kept kept;
      kept.last = kernels.LastReaching(between.data(), weights, count, law::Remaining(*threshold, from_second));
      return kept;
    }
    // Missed. The first bracket may end below the crossing; it never begins above it.
    if (law::Reaches(bracket.from_high, *threshold)) {
      bracket = {bracket.high, row.max_key + 1, bracket.from_high, 0};
    } else if (law::Reaches(from_second, *threshold)) {
      bracket = {second, bracket.high, from_second, bracket.from_high};
    } else {
      bracket = {bracket.low, first, bracket.from_low, from_first};
    }
    share = ShareLeft(*threshold, bracket);
    sample = SampleBetween(kernels, row, bracket.low, bracket.high, kSample, scratch, &scratch->kept);
  }
}

// Keeps the tokens with a key >= `floor`.
Kept KeepFrom(const Kernels& kernels, const RowView& row, uint32_t floor, Scratch* scratch) {
  Kept kept;
  kept.last = Candidate::Of(floor, ~0u);
  if (const auto few = CollectIfFew(kernels, row, floor, scratch, &scratch->kept)) kept.listed = *few;
  return kept;
}

}  // namespace

uint32_t FloorOfMinP(const RowParameters& parameters, const RowView& row, const RowScale& scale) {
  if (parameters.min_p_distance == RowParameters::kMinPOff) return 1;
  return FirstKeyWithin(law::MakeBound(parameters.min_p_distance), row.max_key, scale.scale);
}

Kept Filter(const Kernels& kernels, const RowRequest& request, const RowView& row, const RowScale& scale,
            Scratch* scratch) {
  const RowParameters& parameters = *request.parameters;
  const uint32_t floor = FloorOfMinP(parameters, row, scale);
  if (parameters.top_k != 0 && parameters.top_k < request.live_vocabulary) {
    std::span<Candidate> first = SelectFirst(kernels, row, parameters.top_k, floor, scratch, &scratch->kept);
    if (parameters.top_p != 0) first = TopPOfCandidates(kernels, parameters.top_p, scale, first, scratch);
    return Kept::Of(first);
  }
  if (parameters.top_p != 0) return TopPOfRow(kernels, parameters.top_p, floor, row, scale, scratch);
  return floor == 1 ? Kept() : KeepFrom(kernels, row, floor, scratch);
}

std::span<Candidate> TopPOfCandidates(const Kernels& kernels, uint32_t top_p, const RowScale& scale,
                                      std::span<Candidate> candidates, Scratch* scratch) {
  uint64_t* const weights = scratch->weights.Reserve(candidates.size());
  const uint64_t sum = kernels.WeighCandidates(candidates.data(), uint32_t(candidates.size()), scale, weights);
  return PrefixReaching(kernels, law::TopPThreshold(sum, top_p), candidates, weights);
}

Kept TopPOfRow(const Kernels& kernels, uint32_t top_p, uint32_t floor, const RowView& row, const RowScale& scale,
               Scratch* scratch) {
  // A peaked row's leading tokens reach the threshold alone.
  uint32_t* const folded = scratch->folded.Reserve(row.groups);
  const uint32_t from = kernels.LowerBoundOfNth(row.reached, row.groups, kLeading, floor, folded);
  const std::span<Candidate> leading = CollectBetween(kernels, row, from, kNoCeiling, scratch, &scratch->kept);
  const auto number = uint32_t(leading.size());
  const uint64_t leading_sum = kernels.WeighCandidates(leading.data(), number, scale, scratch->weights.Reserve(number));
  // Estimates the weight of the others by a sample: tells, before the row is summed, whether the leading ones suffice.
  const Sample sample = SampleBetween(kernels, row, floor, from, kSample, scratch, &scratch->leading);
  const auto sampled = uint32_t(sample.candidates.size());
  const double others = double(sample.step) * double(kernels.WeighCandidates(sample.candidates.data(), sampled, scale,
                                                                             scratch->weights.Reserve(sampled)));
  const uint64_t estimated_sum = leading_sum + uint64_t(std::min(others, 0x1p62));
  const law::Threshold estimate = law::TopPThreshold(estimated_sum, top_p);
  const auto cross = [&](uint64_t sum, law::Threshold threshold) {
    const Bracket bracket = {floor, from, sum, leading_sum};
    return CrossingToken(kernels, top_p, floor, bracket, ShareLeft(threshold, bracket), sample, row, scale, scratch);
  };
  if (from > floor && !law::Reaches(leading_sum, estimate)) return cross(estimated_sum, estimate);
  uint64_t* const weights = scratch->prefix_weights.Reserve(number);
  kernels.WeighCandidates(leading.data(), number, scale, weights);
  const auto last_reaching = [&](law::Threshold threshold) {
    return kernels.LastReaching(leading.data(), weights, number, threshold);
  };
  const auto keep_to = [&](Candidate last) {
    return Kept::Of(leading.first(kernels.MoveNotAfter(leading.data(), number, last)));
  };
  uint64_t sum = leading_sum;
  if (from > floor) {
    LeadingSum part;
    if (number <= kMostLeading) {
      // The last kept token is certain if it is the same at both ends of the bounds, which it seldom is if they are
      // further apart than its weight.
      const uint64_t widest = law::Weight(DistanceOfKey(last_reaching(estimate).key(), scale));
      part = SumLeadingGroups(kernels, row, floor, widest, 0.75, scale, scratch);
      const SumBounds bounds = part.rest.Plus(part.sum);
      const law::Threshold most = law::TopPThreshold(bounds.high, top_p);
      if (law::Reaches(leading_sum, most)) {
        const Candidate last = last_reaching(most);
        if (last == last_reaching(law::TopPThreshold(bounds.low, top_p))) return keep_to(last);
      }
    }
    const uint32_t weighted = std::max(floor, scale.first_weighted_key);
    sum = part.sum + SumOfGroupsFrom(kernels, row, weighted, scale, scratch, floor, part.level);
  }
  const law::Threshold threshold = law::TopPThreshold(sum, top_p);
  return law::Reaches(leading_sum, threshold) ? keep_to(last_reaching(threshold)) : cross(sum, threshold);
}

namespace {

// The tokens of a row that are not after some token.
struct Prefix {
  std::span<Candidate> tokens;
  uint64_t* weights;
  uint64_t sum;
};

Prefix ListPrefix(const Kernels& kernels, Candidate last, const RowView& row, const RowScale& scale, Scratch* scratch) {
  Prefix prefix;
  prefix.tokens = CollectNotAfter(kernels, row, last, scratch, &scratch->kept);
  const auto count = uint32_t(prefix.tokens.size());
  prefix.weights = scratch->prefix_weights.Reserve(count);
  prefix.sum = kernels.WeighCandidates(prefix.tokens.data(), count, scale, prefix.weights);
  return prefix;
}

// Rules by bounds on the row's sum. Absent if they leave the ruling open. `before`: the sum of the weights of the
// tokens before the winner, or before one that is before it and is not kept. The prefix has all of these.
std::optional<TopPRuling> RuleByBounds(const Kernels& kernels, uint32_t top_p, TopPStep by, SumBounds sum,
                                       const Prefix& prefix, uint64_t before) {
  // The threshold never falls where the sum rises, so these bound it.
  const law::Threshold least = law::TopPThreshold(sum.low, top_p);
  if (!law::Reaches(before, least)) return TopPRuling{by, true, {}, true};
  const law::Threshold most = law::TopPThreshold(sum.high, top_p);
  if (!law::Reaches(before, most)) return std::nullopt;
  const auto count = uint32_t(prefix.tokens.size());
  const Candidate last = kernels.LastReaching(prefix.tokens.data(), prefix.weights, count, most);
  const bool is_exact = last == kernels.LastReaching(prefix.tokens.data(), prefix.weights, count, least);
  const uint32_t kept = kernels.MoveNotAfter(prefix.tokens.data(), count, last);
  return TopPRuling{by, false, Kept::Of(prefix.tokens.first(kept)), is_exact};
}

TopPRuling RuleByRow(const Kernels& kernels, uint32_t top_p, uint32_t floor, Candidate winner, const RowView& row,
                     const RowScale& scale, Scratch* scratch) {
  const Kept kept = TopPOfRow(kernels, top_p, floor, row, scale, scratch);
  return {TopPStep::kRow, kept.Has(winner), kept, true};
}

// True if top-p would keep `winner` in a row of these tokens.
bool IsKeptIn(const Kernels& kernels, uint32_t top_p, Candidate winner, std::span<const Candidate> tokens,
              const RowScale& scale, Scratch* scratch) {
  const auto count = uint32_t(tokens.size());
  uint64_t* const weights = scratch->weights.Reserve(count);
  const uint64_t sum = kernels.WeighCandidates(tokens.data(), count, scale, weights);
  uint64_t before = 0;
  for (uint32_t i = 0; i < count; ++i) before += tokens[i] > winner ? weights[i] : 0;
  return !law::Reaches(before, law::TopPThreshold(sum, top_p));
}

// Ends the work on a row that is copied lazily: copied whole it takes less time from here on.
TopPRuling AskForWholeCopy(LazyCopy* lazy) {
  lazy->has_failed = true;
  return {TopPStep::kRow, true, {}, true};
}

SumBounds NearSumFrom(const Kernels& kernels, uint32_t floor, const RowView& row, const RowScale& scale,
                      Scratch* scratch) {
  return BoundAllWeights(kernels, row, Candidate::Of(floor, ~0u), scale, scratch, floor).before;
}

// Rules on a winner that has many tokens before it.
TopPRuling RuleFarBack(const Kernels& kernels, uint32_t top_p, uint32_t floor, Candidate winner, const RowView& row,
                       const RowScale& scale, Scratch* scratch) {
  if (!HasNearWeights(scale)) return RuleByRow(kernels, top_p, floor, winner, row, scale, scratch);
  constexpr uint32_t kFewTokens = 4096;  // to list them takes less time than to race and sum again
  const auto is_surely_kept = [&](const SplitBounds& sums) {
    return !law::Reaches(sums.before.high, law::TopPThreshold(sums.all.low, top_p));
  };
  const auto is_surely_not = [&](const SplitBounds& sums) {
    return law::Reaches(sums.before.low, law::TopPThreshold(sums.all.high, top_p));
  };
  const auto not_kept = [](Candidate last) { return TopPRuling{TopPStep::kNearSum, false, {last, {}}, false}; };
  // If a sample says that the winner is not kept, it also guesses a token behind the end of what is kept. If the winner
  // is behind that and the guess is right, all tokens behind it are out of the race, and its next winner is probably
  // kept.
  const Sample sample = SampleBetween(kernels, row, floor, kNoCeiling, kSample, scratch, &scratch->leading);
  const std::span<const Candidate> sampled = sample.candidates;
  if (!IsKeptIn(kernels, top_p, winner, sampled, scale, scratch)) {
    const double share = double(top_p) * 0x1p-32;
    const uint32_t behind_key = Guess(kernels, floor, kNoCeiling, share, sampled, scale, scratch).first;
    const Candidate behind = Candidate::Of(behind_key, ~0u);
    const SplitBounds sums =
        winner < behind ? BoundAllWeights(kernels, row, behind, scale, scratch, floor) : SplitBounds();
    if (is_surely_not(sums)) {
      const auto about =
          sample.step * std::count_if(sampled.begin(), sampled.end(), [&](Candidate c) { return c > behind; });
      if (about > kFewTokens) return not_kept(behind);
      const Prefix prefix = ListPrefix(kernels, behind, row, scale, scratch);
      return *RuleByBounds(kernels, top_p, TopPStep::kNearSum, sums.all, prefix, prefix.sum);
    }
  }
  SplitBounds sums = BoundAllWeights(kernels, row, winner, scale, scratch, floor);
  if (floor != 1 && !is_surely_not(sums)) sums.all = NearSumFrom(kernels, floor, row, scale, scratch);
  if (is_surely_kept(sums)) return {TopPStep::kNearSum, true, {}, true};
  if (is_surely_not(sums)) return not_kept({winner.rank + 1});
  return RuleByRow(kernels, top_p, floor, winner, row, scale, scratch);
}

}  // namespace

TopPRuling RuleByTopP(const Kernels& kernels, uint32_t top_p, uint32_t floor, Candidate winner, const RowView& row,
                      const RowScale& scale, Scratch* scratch) {
  constexpr uint32_t kFewGroups = 256;
  uint32_t* const groups = scratch->groups.Reserve(row.groups);
  if (kernels.SelectAtLeast(row.maxima, row.groups, winner.key(), groups) > kFewGroups) {
    if (row.lazy != nullptr) return AskForWholeCopy(row.lazy);
    return RuleFarBack(kernels, top_p, floor, winner, row, scale, scratch);
  }
  const Prefix prefix = ListPrefix(kernels, winner, row, scale, scratch);
  const uint64_t before = prefix.sum - law::Weight(DistanceOfKey(winner.key(), scale));
  const auto rule = [&](TopPStep by, SumBounds sum) { return RuleByBounds(kernels, top_p, by, sum, prefix, before); };
  // The first two steps know no upper bound, so they seldom find that the winner is not kept.
  constexpr uint64_t kNoBound = SumBounds::kNoBound;
  if (const auto ruling = rule(TopPStep::kOwnSum, {prefix.sum, kNoBound})) return *ruling;
  const SumBounds others = BoundGroupsBelow(kernels, row, winner.key(), scale, scratch, floor);
  if (const auto ruling = rule(TopPStep::kMaxima, {prefix.sum + others.low, kNoBound})) return *ruling;

  // Bounds that are further apart than that seldom decide.
  const uint64_t widest = std::min(prefix.sum / 16, law::kUnitWeight);
  const LeadingSum leading = SumLeadingGroups(kernels, row, floor, widest, 0.25, scale, scratch);
  if (const auto ruling = rule(TopPStep::kLeadingGroups, leading.rest.Plus(leading.sum))) return *ruling;
  if (row.lazy != nullptr) return AskForWholeCopy(row.lazy);
  const SumBounds sum = NearSumFrom(kernels, floor, row, scale, scratch);
  if (const auto ruling = rule(TopPStep::kNearSum, sum)) return *ruling;
  return RuleByRow(kernels, top_p, floor, winner, row, scale, scratch);
}

}  // namespace sortition::kernels::cpu
