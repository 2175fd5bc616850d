// Sums and ranks of a distribution.
#include "kernels/cpu/describe.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "kernels/cpu/select.h"
#include "kernels/cpu/sums.h"
#include "kernels/law/row_law.h"

namespace sortition::kernels::cpu {
namespace {

TokenBits BitsOf(Candidate candidate) { return {candidate.token(), law::KeyBits(candidate.key())}; }

void FillTop(std::span<Candidate> first, Distribution* distribution) {
  std::sort(first.begin(), first.end(), std::greater<>());
  distribution->top.reserve(first.size());
  for (const Candidate& candidate : first) distribution->top.push_back(BitsOf(candidate));
}

// All kept tokens, in no particular order.
std::span<Candidate> AllKept(const Kernels& kernels, const Row& row, const Kept& kept, Scratch* scratch) {
  if (!kept.listed.empty()) return kept.listed;
  const std::span<Candidate> from = CollectBetween(kernels, row, kept.last.key(), kNoCeiling, scratch, &scratch->kept);
  return from.first(
      size_t(std::partition(from.begin(), from.end(), [&](Candidate c) { return kept.Has(c); }) - from.begin()));
}

// From this number of tokens on, ranks are counted in one pass over the kept tokens for all of them together.
constexpr size_t kFewRanks = 8;

// The places of all `tokens`, that each rank is counted for.
void FillPlaces(const Kernels& kernels, const Row& row, const Kept& kept, std::span<const Candidate> tokens,
                Scratch* scratch, std::vector<Place>* places) {
  places->assign(tokens.size(), {law::kMaskedBits, 0});
  std::vector<std::pair<Candidate, uint32_t>> known;  // with their indices, last in order first
  for (uint32_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].key() != 0 && kept.Has(tokens[i])) known.emplace_back(tokens[i], i);
  }
  if (known.empty()) return;
  if (kept.listed.empty() && known.size() <= kFewRanks) {
    for (const auto& [token, i] : known) {
      (*places)[i] = {law::KeyBits(token.key()), NumberOfTokens(kernels, row, token, scratch)};
    }
    return;
  }
  std::sort(known.begin(), known.end());
  std::vector<uint32_t> passed(known.size());  // tokens that come before or are this one, but after the one before
  for (const Candidate& candidate : AllKept(kernels, row, kept, scratch)) {
    const auto at = std::upper_bound(known.begin(), known.end(), candidate,
                                     [](Candidate c, const auto& entry) { return c < entry.first; });
    if (at != known.begin()) ++passed[size_t(at - known.begin()) - 1];
  }
  uint32_t rank = 0;
  for (size_t i = known.size(); i > 0; --i) {
    const auto& [token, index] = known[i - 1];
    rank += passed[i - 1];
    (*places)[index] = {law::KeyBits(token.key()), rank};
  }
}

void FillTopOf(std::span<Candidate> listed, uint32_t top, Distribution* distribution) {
  const size_t count = std::min<size_t>(top, listed.size());
  std::nth_element(listed.begin(), listed.begin() + ptrdiff_t(count - 1), listed.end(), std::greater<>());
  FillTop(listed.first(count), distribution);
}

}  // namespace

void Describe(const Kernels& kernels, const Row& row, const RowScale& scale, const Kept& kept, Candidate chosen,
              uint32_t top, std::span<const Candidate> requested, Scratch* scratch, Distribution* distribution) {
  distribution->max_bits = law::KeyBits(row.max_key);
  std::vector<Place> place;
  FillPlaces(kernels, row, kept, {&chosen, 1}, scratch, &place);
  distribution->chosen = {chosen.token(), place[0].bits};
  distribution->rank = place[0].rank;
  if (!requested.empty()) FillPlaces(kernels, row, kept, requested, scratch, &distribution->requested);
  distribution->weight_sum = WeighKept(kernels, row, scale, kept, scratch);
  if (kept.listed.empty()) {
    if (top == 0) return;
    // The kept tokens come first in order, so the first of all are the first of them.
    std::span<Candidate> first = SelectFirst(kernels, row, top, kept.last.key(), scratch, &scratch->leading);
    const auto end = std::partition(first.begin(), first.end(), [&](Candidate c) { return kept.Has(c); });
    FillTop(first.first(size_t(end - first.begin())), distribution);
  } else if (top != 0) {
    FillTopOf(kept.listed, top, distribution);
  }
}

void DescribePointMass(Candidate first, Candidate chosen, uint32_t top, std::span<const Candidate> requested,
                       Distribution* distribution) {
  const auto place_of = [&](Candidate c) {
    return c == first ? Place{law::KeyBits(first.key()), 1} : Place{law::kMaskedBits, 0};
  };
  distribution->max_bits = law::KeyBits(first.key());
  distribution->weight_sum = law::kUnitWeight;
  distribution->chosen = {chosen.token(), place_of(chosen).bits};
  distribution->rank = place_of(chosen).rank;
  if (top != 0) distribution->top.push_back(BitsOf(first));
  for (const Candidate& candidate : requested) distribution->requested.push_back(place_of(candidate));
}

uint32_t CountKept(const Kernels& kernels, const Row& row, const Kept& kept, Scratch* scratch) {
  return kept.listed.empty() ? NumberOfTokens(kernels, row, kept.last, scratch) : uint32_t(kept.listed.size());
}

void ListKept(const Kernels& kernels, const Row& row, const Kept& kept, Scratch* scratch,
              std::vector<TokenBits>* tokens) {
  const std::span<const Candidate> all = AllKept(kernels, row, kept, scratch);
  tokens->reserve(all.size());
  for (const Candidate& candidate : all) tokens->push_back(BitsOf(candidate));
  std::ranges::sort(*tokens, {}, &TokenBits::token);
}

EntropySums SumEntropy(const Kernels& kernels, const Row& row, const RowScale& scale, const Kept& kept,
                       Scratch* scratch) {
  EntropySums sums;
  for (const Candidate& candidate : AllKept(kernels, row, kept, scratch)) {
    const uint32_t t = DistanceOfKey(candidate.key(), scale);
    const uint64_t weight = law::Weight(t);
    sums.weights += weight;
    sums.surplus += law::Surplus(weight, t);
  }
  return sums;
}

}  // namespace sortition::kernels::cpu
