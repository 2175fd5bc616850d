// The search for the prefix's end, without sorting the vocabulary.
#include "kernels/cpu/top_p.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "kernels/check.h"
#include "kernels/cpu/select.h"
#include "kernels/cpu/sums.h"
#include "kernels/law/row_law.h"

namespace sortition::kernels::cpu {
namespace {

constexpr size_t kSortAtOnce = 48;
constexpr uint32_t kFirstLeading = 256;
constexpr size_t kSample = 4096;

// Moves the shortest prefix whose weights reach `threshold`, which those of all candidates do, to the front and returns
// it.
std::span<Candidate> PrefixReaching(const Kernels& kernels, uint64_t threshold, const RowScale& scale,
                                    std::span<Candidate> candidates, Scratch* scratch) {
  uint64_t* const weights = scratch->weights.Reserve(candidates.size());
  // The prefix before `first` does not reach the threshold, the one before `last` does.
  size_t first = 0;
  size_t last = candidates.size();
  uint64_t before = 0;
  while (last - first > kSortAtOnce) {
    const size_t middle = first + (last - first) / 2;
    std::nth_element(candidates.begin() + first, candidates.begin() + middle, candidates.begin() + last,
                     std::greater<>());
    const uint64_t sum = before + kernels.WeighCandidates(&candidates[first], uint32_t(middle - first), scale, weights);
    if (sum >= threshold) {
      last = middle;
    } else {
      first = middle;
      before = sum;
    }
  }
  std::sort(candidates.begin() + first, candidates.begin() + last, std::greater<>());
  kernels.WeighCandidates(&candidates[first], uint32_t(last - first), scale, weights);
  size_t kept = 0;
  while (before < threshold) before += weights[kept++];
  return candidates.first(first + std::max<size_t>(kept, 1));
}

// The row's leading tokens where those reach the threshold, and are not a large part of the row; otherwise nothing.
std::span<Candidate> LeadingTokens(const Kernels& kernels, uint64_t threshold, uint32_t floor, const Row& row,
                                   const RowScale& scale, Scratch* scratch) {
  for (uint32_t count = kFirstLeading; count <= row.groups / 2; count *= 4) {
    uint32_t* const folded = scratch->folded.Reserve(row.groups);
    const uint32_t from = kernels.LowerBoundOfNth(row.maxima, row.groups, count, floor, folded);
    const std::span<Candidate> leading = CollectBetween(kernels, row, from, kNoCeiling, scratch, &scratch->kept);
    uint64_t* const weights = scratch->weights.Reserve(leading.size());
    if (kernels.WeighCandidates(leading.data(), uint32_t(leading.size()), scale, weights) >= threshold) return leading;
  }
  return {};
}

// Keys between which the threshold is crossed: the tokens of a key >= low reach it, those of a key >= high do not.
struct Bracket {
  uint32_t low;
  uint32_t high;
  uint64_t sum_low;  // of the weights of the keys >= low
  uint64_t sum_high;
};

// Two keys that probably lie close to the crossing, on either side of it; bracket.low <= first < second <=
// bracket.high.
std::pair<uint32_t, uint32_t> Guess(const Kernels& kernels, uint64_t threshold, const Bracket& bracket, const Row& row,
                                    const RowScale& scale, Scratch* scratch) {
  const std::span<Candidate> sample =
      SampleBetween(kernels, row, bracket.low, bracket.high, kSample, scratch, &scratch->kept);
  if (sample.empty()) return {bracket.low, bracket.high};
  std::sort(sample.begin(), sample.end(), std::greater<>());
  uint64_t* const weights = scratch->weights.Reserve(sample.size());
  const uint64_t sum = kernels.WeighCandidates(sample.data(), uint32_t(sample.size()), scale, weights);
  // In double: this is a guess.
  const double share = double(threshold - bracket.sum_high) / double(bracket.sum_low - bracket.sum_high);
  double missing = share * double(sum);
  size_t crossing = 0;
  while (crossing + 1 < sample.size() && missing > double(weights[crossing])) missing -= double(weights[crossing++]);
  const auto margin = size_t(2 * std::sqrt(double(sample.size())));
  const uint32_t first = crossing + margin < sample.size() ? sample[crossing + margin].key() : bracket.low;
  const uint32_t second = crossing >= margin ? sample[crossing - margin].key() : bracket.high;
  return {first, std::max(second, first + 1)};
}

Kept CrossingToken(const Kernels& kernels, uint64_t threshold, Bracket bracket, const Row& row, const RowScale& scale,
                   Scratch* scratch) {
  for (;;) {
    const auto [first, second] = Guess(kernels, threshold, bracket, row, scale, scratch);
    if (first > bracket.low) {
      const uint64_t sum = SumOfWeights(kernels, row, Candidate::Of(first, ~0u), scale, scratch);
      if (sum < threshold) {
        bracket.high = first;
        bracket.sum_high = sum;
        continue;
      }
      bracket.low = first;
      bracket.sum_low = sum;
    }
    const std::span<Candidate> between = CollectBetween(kernels, row, bracket.low, second, scratch, &scratch->kept);
    uint64_t* const weights = scratch->weights.Reserve(between.size());
    const uint64_t sum = kernels.WeighCandidates(between.data(), uint32_t(between.size()), scale, weights);
    const uint64_t above = bracket.sum_low - sum;
    if (above >= threshold) {
      bracket.low = second;
      bracket.sum_low = above;
      continue;
    }
    const std::span<Candidate> prefix = PrefixReaching(kernels, threshold - above, scale, between, scratch);
    Kept kept;
    kept.last = *std::min_element(prefix.begin(), prefix.end());
    return kept;
  }
}

}  // namespace

std::span<Candidate> TopPOfCandidates(const Kernels& kernels, uint32_t top_p, const RowScale& scale,
                                      std::span<Candidate> candidates, Scratch* scratch) {
  uint64_t* const weights = scratch->weights.Reserve(candidates.size());
  const uint64_t sum = kernels.WeighCandidates(candidates.data(), uint32_t(candidates.size()), scale, weights);
  return PrefixReaching(kernels, law::TopPThreshold(sum, top_p), scale, candidates, scratch);
}

Kept TopPOfRow(const Kernels& kernels, uint32_t top_p, uint32_t floor, const Row& row, const RowScale& scale,
               Scratch* scratch) {
  const uint64_t sum = SumOfWeights(kernels, row, Candidate::Of(floor, ~0u), scale, scratch);
  const uint64_t threshold = law::TopPThreshold(sum, top_p);
  const std::span<Candidate> leading = LeadingTokens(kernels, threshold, floor, row, scale, scratch);
  if (!leading.empty()) return Kept::Of(PrefixReaching(kernels, threshold, scale, leading, scratch));
  return CrossingToken(kernels, threshold, {floor, row.max_key + 1, sum, 0}, row, scale, scratch);
}

}  // namespace sortition::kernels::cpu
