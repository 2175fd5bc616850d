// Sums and ranks of a distribution.
#include "kernels/cpu/describe.h"

#include <algorithm>

namespace sortition::kernels::cpu {
namespace {

TokenBits BitsOf(const Candidate& candidate) { return {candidate.token, law::KeyBits(candidate.key)}; }

}  // namespace

Distribution Describe(const Row& row, const law::Scale& scale, const Cut& cut, const Candidate& chosen, uint32_t top,
                      Scratch* scratch, uint32_t* kept) {
  uint64_t weight_sum = 0;
  uint32_t count = 0;
  uint32_t before = 0;
  ForEachFrom(row, cut.key, [&](uint32_t token, uint32_t key) {
    if (!cut.Keeps(key, token)) return;
    count += 1;
    before += law::Before(key, token, chosen.key, chosen.token);
    weight_sum += law::Weight(law::Distance(law::KeyBits(key), scale));
  });
  *kept = count;
  Distribution distribution;
  distribution.max_bits = law::KeyBits(row.max_key);
  distribution.weight_sum = weight_sum;
  distribution.chosen = BitsOf(chosen);
  distribution.rank = 1 + before;
  if (top == 0) return distribution;

  // The kept tokens come first in order, so the first of all are the first of them.
  SelectFirst(row, std::min(top, count), cut.key, scratch);
  std::sort(scratch->candidates.begin(), scratch->candidates.end(), InOrder);
  for (const Candidate& candidate : scratch->candidates) distribution.top.push_back(BitsOf(candidate));
  return distribution;
}

Distribution PointMass(const Candidate& chosen, uint32_t top) {
  Distribution distribution;
  distribution.chosen = BitsOf(chosen);
  distribution.max_bits = distribution.chosen.bits;
  distribution.weight_sum = law::kUnitWeight;
  distribution.rank = 1;
  if (top != 0) distribution.top.push_back(distribution.chosen);
  return distribution;
}

}  // namespace sortition::kernels::cpu
