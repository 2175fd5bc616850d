// Sums and ranks of a distribution.
#include "kernels/cpu/describe.h"

#include <algorithm>
#include <functional>

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

void DescribeList(const Kernels& kernels, std::span<Candidate> listed, const RowScale& scale, Candidate chosen,
                  uint32_t top, Scratch* scratch, Distribution* distribution) {
  uint64_t* const weights = scratch->weights.Reserve(listed.size());
  distribution->weight_sum = kernels.WeighCandidates(listed.data(), uint32_t(listed.size()), scale, weights);
  distribution->rank = uint32_t(std::count_if(listed.begin(), listed.end(), [&](Candidate c) { return c >= chosen; }));
  if (top == 0) return;
  const size_t count = std::min<size_t>(top, listed.size());
  std::nth_element(listed.begin(), listed.begin() + (count - 1), listed.end(), std::greater<>());
  FillTop(listed.first(count), distribution);
}

void DescribeRow(const Kernels& kernels, const Row& row, const RowScale& scale, Candidate last, Candidate chosen,
                 uint32_t top, Scratch* scratch, Distribution* distribution) {
  distribution->weight_sum = SumOfWeights(kernels, row, last, scale, scratch);
  distribution->rank = NumberOfTokens(kernels, row, chosen, scratch);
  if (top == 0) return;
  // The kept tokens come first in order, so the first of all are the first of them.
  std::span<Candidate> first = SelectFirst(kernels, row, top, last.key(), scratch, &scratch->leading);
  first =
      first.first(std::partition(first.begin(), first.end(), [&](Candidate c) { return c >= last; }) - first.begin());
  FillTop(first, distribution);
}

}  // namespace

void Describe(const Kernels& kernels, const Row& row, const RowScale& scale, const Kept& kept, Candidate chosen,
              uint32_t top, Scratch* scratch, Distribution* distribution) {
  distribution->max_bits = law::KeyBits(row.max_key);
  distribution->chosen = BitsOf(chosen);
  if (kept.listed.empty()) {
    DescribeRow(kernels, row, scale, kept.last, chosen, top, scratch, distribution);
  } else {
    DescribeList(kernels, kept.listed, scale, chosen, top, scratch, distribution);
  }
}

void DescribePointMass(Candidate chosen, uint32_t top, Distribution* distribution) {
  distribution->chosen = BitsOf(chosen);
  distribution->max_bits = distribution->chosen.bits;
  distribution->weight_sum = law::kUnitWeight;
  distribution->rank = 1;
  if (top != 0) distribution->top.push_back(distribution->chosen);
}

}  // namespace sortition::kernels::cpu
