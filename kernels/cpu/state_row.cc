// The first tokens through group maxima; sums as the kernel of whole rows has them.
#include "kernels/cpu/state_row.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "kernels/check_row.h"
#include "kernels/cpu/read.h"
#include "kernels/cpu/scale.h"
#include "kernels/cpu/select.h"
#include "kernels/cpu/sums.h"
#include "kernels/law/compact.h"
#include "kernels/law/row_law.h"

namespace sortition::kernels::cpu {
namespace {

TokenBits BitsOf(Candidate candidate) { return {candidate.token(), law::KeyBits(candidate.key())}; }

// Puts candidates, which stand by ascending id, into the law's order. Returns them, in one of the two places. Sorts by
// the digits of their keys that differ: first tokens have few, which comparisons would not use.
std::span<const Candidate> InOrder(std::span<Candidate> candidates, Array<Candidate>* memory) {
  constexpr uint32_t kDigit = 9;
  if (candidates.empty()) return candidates;
  uint32_t differing = 0;
  for (const Candidate& candidate : candidates) differing |= candidate.key() ^ candidates[0].key();
  Candidate* from = candidates.data();
  Candidate* to = memory->Reserve(candidates.size());
  while (differing != 0) {
    const auto shift = uint32_t(std::countr_zero(differing));
    const uint32_t mask = (1u << kDigit) - 1;
    const auto digit = [&](const Candidate& candidate) { return ~candidate.key() >> shift & mask; };
    uint32_t places[(1u << kDigit) + 1] = {};
    for (size_t i = 0; i < candidates.size(); ++i) ++places[digit(from[i]) + 1];
    for (uint32_t i = 1; i <= mask; ++i) places[i] += places[i - 1];
    for (size_t i = 0; i < candidates.size(); ++i) to[places[digit(from[i])]++] = from[i];
    std::swap(from, to);
    differing &= ~(mask << shift);
  }
  return {from, candidates.size()};
}

uint64_t SumAt(const Kernels& kernels, const Row& row, const law::Temperature& temperature, Scratch* scratch) {
  return SumOfWeights(kernels, row, kLastLive, ScaleOf(temperature, row.max_key), scratch);
}

}  // namespace

bool StateRow(const Target& target, const RowRequest& request, const StatedParts& parts, Scratch* scratch,
              StatedRow* stated) {
  CheckAllButEdits(request);
  SORTITION_CHECK(parts.count > 0);
  const Kernels& kernels = target.kernels;
  stated->first.clear();
  stated->others.clear();
  stated->unit_sum = stated->sum = std::nullopt;
  Row row = LayRow(request, RowCopy(), scratch);
  RowOutput failure;
  if (!ReadRow(kernels, request, scratch, &row, &failure)) return false;

  // One token more shows whether the list is whole.
  std::span<const Candidate> first;
  if (row.max_key != 0) {
    first = InOrder(SelectAbout(kernels, row, parts.count + 1, law::kLowestKey, scratch, &scratch->leading),
                    &scratch->kept);
  }
  stated->is_whole = first.size() <= parts.count;
  first = first.first(std::min<size_t>(first.size(), parts.count));
  stated->first.resize(first.size());
  std::ranges::transform(first, stated->first.begin(), BitsOf);

  for (const uint32_t token : parts.named) {
    SORTITION_CHECK(token < request.live_vocabulary);
    const TokenBits sent = {token, law::Canonical(SentBits(request, token))};
    const Candidate candidate = Candidate::Of(law::Key(sent.bits), token);
    if (first.empty() || candidate < first.back()) stated->others.push_back(sent);
  }
  if (row.max_key == 0) return true;
  if (parts.unit_sum) stated->unit_sum = SumAt(kernels, row, law::UnitTemperature(), scratch);
  const auto temperature = law::StatedTemperature(*request.parameters);
  if (parts.sum && temperature) stated->sum = SumAt(kernels, row, *temperature, scratch);
  return true;
}

bool StateRow(const RowRequest& request, const StatedParts& parts, Scratch* scratch, StatedRow* row) {
  return StateRow(BestTarget(), request, parts, scratch, row);
}

}  // namespace sortition::kernels::cpu
