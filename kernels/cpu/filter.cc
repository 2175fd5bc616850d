// Each filter keeps a prefix of the order, so each is a cut, and the next one starts from it.
#include "kernels/cpu/filter.h"

#include <algorithm>

namespace sortition::kernels::cpu {
namespace {

// Top-p sums weights by distance in buckets of 1/64 octave, then looks into the one bucket in which the threshold lies.
constexpr uint32_t kBucketShift = 20;
constexpr uint32_t kBuckets = 45u << (26 - kBucketShift);  // weights are 0 from 45 octaves on

uint64_t WeightOf(uint32_t key, const law::Scale& scale) {
  return law::Weight(law::Distance(law::KeyBits(key), scale));
}

// The smallest key of a distance <= `bound` (not kDead): distance never rises with the key, so bisection finds it.
uint32_t KeyAtDistance(uint32_t max_key, uint32_t bound, const law::Scale& scale) {
  uint32_t low = 1;
  uint32_t high = max_key;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (law::Distance(law::KeyBits(middle), scale) <= bound) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return high;
}

// The last of the shortest ordered prefix whose weights reach `threshold`, which all of them together do. Reorders.
Cut PrefixReaching(uint64_t threshold, const law::Scale& scale, std::vector<Candidate>* candidates) {
  // The prefix before `first` does not reach the threshold, the one before `last` does.
  auto first = candidates->begin();
  auto last = candidates->end();
  uint64_t before = 0;
  while (last - first > 1) {
    const auto middle = first + (last - first) / 2;
    std::nth_element(first, middle, last, InOrder);
    uint64_t sum = before;
    for (auto it = first; it != middle; ++it) sum += WeightOf(it->key, scale);
    if (sum >= threshold) {
      last = middle;
    } else {
      first = middle;
      before = sum;
    }
  }
  return {first->key, first->token};
}

Cut TopPOfCandidates(uint32_t top_p, const law::Scale& scale, std::vector<Candidate>* candidates) {
  uint64_t sum = 0;
  for (const Candidate& candidate : *candidates) sum += WeightOf(candidate.key, scale);
  return PrefixReaching(law::TopPThreshold(sum, top_p), scale, candidates);
}

Cut TopPOfRow(const Row& row, uint32_t top_p, uint32_t floor, const law::Scale& scale, Scratch* scratch) {
  std::vector<uint64_t>& buckets = scratch->buckets;
  buckets.assign(kBuckets, 0);
  ForEachFrom(row, floor, [&](uint32_t, uint32_t key) {
    const uint32_t t = law::Distance(law::KeyBits(key), scale);
    const uint32_t bucket = t >> kBucketShift;
    if (bucket < kBuckets) buckets[bucket] += law::Weight(t);
  });
  uint64_t sum = 0;
  for (const uint64_t bucket : buckets) sum += bucket;

  const uint64_t threshold = law::TopPThreshold(sum, top_p);
  uint32_t crossing = 0;
  uint64_t before = 0;
  while (before + buckets[crossing] < threshold) before += buckets[crossing++];

  // The keys of that bucket lie from `low` to below `high`.
  const uint32_t low = std::max(floor, KeyAtDistance(row.max_key, ((crossing + 1) << kBucketShift) - 1, scale));
  const uint32_t high = crossing == 0 ? ~0u : KeyAtDistance(row.max_key, (crossing << kBucketShift) - 1, scale);
  std::vector<Candidate>& candidates = scratch->candidates;
  candidates.clear();
  ForEachFrom(row, low, [&](uint32_t token, uint32_t key) {
    if (key < high) candidates.push_back({key, token});
  });
  return PrefixReaching(threshold - before, scale, &candidates);
}

}  // namespace

Cut Filter(const Row& row, const law::Scale& scale, Scratch* scratch) {
  const RowParameters& parameters = *row.request->parameters;
  Cut cut;
  if (parameters.min_p_distance != RowParameters::kMinPOff) {
    cut.key = KeyAtDistance(row.max_key, parameters.min_p_distance, scale);
  }
  if (parameters.top_k != 0 && parameters.top_k < row.request->live_vocabulary) {
    SelectFirst(row, parameters.top_k, cut.key, scratch);
    std::vector<Candidate>& candidates = scratch->candidates;
    const Candidate last = *std::max_element(candidates.begin(), candidates.end(), InOrder);
    cut = {last.key, last.token};
    if (parameters.top_p != 0) cut = TopPOfCandidates(parameters.top_p, scale, &candidates);
  } else if (parameters.top_p != 0) {
    cut = TopPOfRow(row, parameters.top_p, cut.key, scale, scratch);
  }
  return cut;
}

}  // namespace sortition::kernels::cpu
