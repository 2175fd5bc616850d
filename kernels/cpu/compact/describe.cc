// Sums and ranks of a distribution.
#include "kernels/cpu/compact/describe.h"

#include <algorithm>
#include <bit>
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
std::span<Candidate> AllKept(const Kernels& kernels, const RowView& row, const Kept& kept, Scratch* scratch) {
  if (!kept.listed.empty()) return kept.listed;
  return CollectNotAfter(kernels, row, kept.last, scratch, &scratch->kept);
}

// Ranks of more tokens than these are counted together, in one pass over the kept tokens.
constexpr size_t kFewRanks = 16;

// Counts candidates between given ones by a table over the span of their logits. Most lie in a bucket without a given
// one, and need no comparison.
class PlaceTable {
 public:
  // `sorted` ascends, is not empty, and outlives this.
  explicit PlaceTable(std::span<const Candidate> sorted) : sorted_(sorted) {
    // Outliers do not widen the span: they lie in its first and last bucket.
    const size_t outliers = sorted.size() / 64;
    const size_t buckets = kBucketsForEach * sorted.size() + 1;
    lowest_ = LogitOf(sorted[outliers]);
    const float span = LogitOf(sorted[sorted.size() - 1 - outliers]) - lowest_;
    last_ = float(buckets - 1);
    scale_ = span > 0 ? last_ / span : 0;
    starts_.resize(buckets + 1);
    size_t at = 0;
    for (uint32_t bucket = 0; bucket <= buckets; ++bucket) {
      while (at < sorted.size() && BucketOf(sorted[at]) < bucket) ++at;
      starts_[bucket] = uint32_t(at);
    }
  }

  // Returns a count for each i from 0 to the number of given candidates: how many of `candidates` lie in [given i - 1,
  // given i). Uses `memory`.
  std::vector<uint32_t> Count(std::span<const Candidate> candidates, Array<Candidate>* memory) const {
    std::vector<uint32_t> counts(sorted_.size() + 1);
    // Candidates that share a bucket with a given one.
    Candidate* const close = memory->Reserve(candidates.size() + 1);
    size_t close_count = 0;
    uint32_t buckets[kBlock];
    for (size_t from = 0; from < candidates.size(); from += kBlock) {
      const std::span<const Candidate> block = candidates.subspan(from, std::min(kBlock, candidates.size() - from));
      for (size_t i = 0; i < block.size(); ++i) buckets[i] = BucketOf(block[i]);
      for (size_t i = 0; i < block.size(); ++i) {
        const uint32_t start = starts_[buckets[i]];
        const uint32_t is_close = start != starts_[buckets[i] + 1];
        counts[start] += 1 - is_close;
        close[close_count] = block[i];
        close_count += is_close;
      }
    }
    for (const Candidate& candidate : std::span(close, close_count)) {
      const uint32_t bucket = BucketOf(candidate);
      const auto end = sorted_.begin() + starts_[bucket + 1];
      ++counts[size_t(std::upper_bound(sorted_.begin() + starts_[bucket], end, candidate) - sorted_.begin())];
    }
    return counts;
  }

 private:
  static constexpr size_t kBucketsForEach = 16;  // given candidate
  static constexpr size_t kBlock = 256;

  // Without branches, which no processor could foresee.
  static float LogitOf(Candidate candidate) {
    const uint32_t key = candidate.key();
    return std::bit_cast<float>(key ^ (~uint32_t(int32_t(key) >> 31) | 0x80000000u));
  }

  // Never falls from a candidate to a greater one, since rounding never changes an order.
  uint32_t BucketOf(Candidate candidate) const {
    const float bucket = (LogitOf(candidate) - lowest_) * scale_;
    return uint32_t(int32_t(std::min(std::max(bucket, 0.0f), last_)));
  }

  std::span<const Candidate> sorted_;
  float lowest_ = 0;
  float scale_ = 0;
  float last_ = 0;                // the last bucket
  std::vector<uint32_t> starts_;  // by bucket, the index of the first candidate of it or of a later one
};

// Counts the ranks of all `tokens`.
void FillPlaces(const Kernels& kernels, const RowView& row, const Kept& kept, std::span<const Candidate> tokens,
                Scratch* scratch, std::vector<TokenPlace>* places) {
  places->assign(tokens.size(), {law::kMaskedBits, 0});
  std::vector<std::pair<Candidate, uint32_t>> known;  // with their indices, last in order first
  for (uint32_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].key() != 0 && kept.Has(tokens[i])) known.emplace_back(tokens[i], i);
  }
  if (known.empty()) return;
  if (known.size() <= kFewRanks) {
    for (const auto& [token, i] : known) {
      const Candidate last = token;
      const uint32_t rank = kept.listed.empty()
                                ? NumberOfTokens(kernels, row, last, scratch)
                                : uint32_t(std::ranges::count_if(kept.listed, [&](Candidate c) { return c >= last; }));
      (*places)[i] = {law::KeyBits(last.key()), rank};
    }
    return;
  }
  std::sort(known.begin(), known.end());
  std::vector<Candidate> sorted;
  for (const auto& entry : known) sorted.push_back(entry.first);
  // passed[i]: the number of tokens in [known token i - 1, known token i).
  const std::vector<uint32_t> passed =
      PlaceTable(sorted).Count(AllKept(kernels, row, kept, scratch), &scratch->leading);
  uint32_t rank = 0;
  for (size_t i = known.size(); i > 0; --i) {
    const auto& [token, index] = known[i - 1];
    rank += passed[i];
    (*places)[index] = {law::KeyBits(token.key()), rank};
  }
}

void FillTopOf(std::span<Candidate> listed, uint32_t top, Distribution* distribution) {
  const size_t count = std::min<size_t>(top, listed.size());
  std::nth_element(listed.begin(), listed.begin() + ptrdiff_t(count - 1), listed.end(), std::greater<>());
  FillTop(listed.first(count), distribution);
}

}  // namespace

void Describe(const Kernels& kernels, const RowView& row, const RowScale& scale, const Kept& kept, Candidate chosen,
              uint32_t top, std::span<const Candidate> requested, Scratch* scratch, Distribution* distribution) {
  distribution->max_bits = law::KeyBits(row.max_key);
  std::vector<TokenPlace> place;
  FillPlaces(kernels, row, kept, {&chosen, 1}, scratch, &place);
  distribution->chosen = {chosen.token(), place[0].bits};
  distribution->rank = place[0].rank;
  if (!requested.empty()) FillPlaces(kernels, row, kept, requested, scratch, &distribution->requested);
  distribution->weight_sum = WeighKept(kernels, row, scale, kept, scratch);
  if (kept.listed.empty()) {
    if (top == 0) return;
    // Kept tokens come first in order, so the first tokens of the row are the first kept ones.
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
    return c == first ? TokenPlace{law::KeyBits(first.key()), 1} : TokenPlace{law::kMaskedBits, 0};
  };
  distribution->max_bits = law::KeyBits(first.key());
  distribution->weight_sum = law::kUnitWeight;
  distribution->chosen = {chosen.token(), place_of(chosen).bits};
  distribution->rank = place_of(chosen).rank;
  if (top != 0) distribution->top.push_back(BitsOf(first));
  for (const Candidate& candidate : requested) distribution->requested.push_back(place_of(candidate));
}

uint32_t CountKept(const Kernels& kernels, const RowView& row, const Kept& kept, Scratch* scratch) {
  return kept.listed.empty() ? NumberOfTokens(kernels, row, kept.last, scratch) : uint32_t(kept.listed.size());
}

void ListKept(const Kernels& kernels, const RowView& row, const Kept& kept, Scratch* scratch,
              std::vector<TokenBits>* tokens) {
  const std::span<const Candidate> all = AllKept(kernels, row, kept, scratch);
  tokens->reserve(all.size());
  for (const Candidate& candidate : all) tokens->push_back(BitsOf(candidate));
  // A long list ascends already, up to its edited tokens.
  if (!std::ranges::is_sorted(*tokens, {}, &TokenBits::token)) std::ranges::sort(*tokens, {}, &TokenBits::token);
}

EntropySums SumEntropy(const Kernels& kernels, const RowView& row, const RowScale& scale, const Kept& kept,
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
