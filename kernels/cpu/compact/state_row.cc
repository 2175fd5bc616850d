// First tokens by group maxima; sums by the whole rows' kernel.
#include "kernels/cpu/compact/state_row.h"

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

// Sorts candidates from ascending ids into the law's order. Returns them, in one of the two places. Sorts by digits:
// the keys of first tokens differ from the largest one in few digits, which a sort by comparisons would not use.
std::span<const Candidate> InOrder(std::span<Candidate> candidates, Scratch* scratch) {
  if (candidates.empty()) return candidates;
  uint32_t smallest = ~0u;
  uint32_t largest = 0;
  uint32_t differing = 0;
  for (const Candidate& candidate : candidates) {
    smallest = std::min(smallest, candidate.key());
    largest = std::max(largest, candidate.key());
    differing |= candidate.key() ^ candidates[0].key();
  }
  constexpr int kDigit = 11;
  uint32_t places[1 << kDigit];
  Candidate* from = candidates.data();
  Candidate* to = scratch->kept.Reserve(candidates.size());
  int shift = differing == 0 ? 0 : std::countr_zero(differing);
  for (uint32_t left = (largest - smallest) >> shift; left != 0; left >>= kDigit, shift += kDigit) {
    const uint32_t mask = (1u << kDigit) - 1;
    const auto digit = [&](size_t i) { return (largest - from[i].key()) >> shift & mask; };
    const uint32_t digits = std::min(left, mask) + 1;
    std::fill_n(places, digits, 0);
    for (size_t i = 0; i < candidates.size(); ++i) ++places[digit(i)];
    uint32_t place = 0;
    for (uint32_t i = 0; i < digits; ++i) place += std::exchange(places[i], place);
    for (size_t i = 0; i < candidates.size(); ++i) to[places[digit(i)]++] = from[i];
    std::swap(from, to);
  }
  return {from, candidates.size()};
}

// States the tokens of `named` that are not among the first ones.
void StateNamed(const RowRequest& request, std::span<const uint32_t> named, StatedRow* stated) {
  const auto candidate = [](TokenBits token) { return Candidate::Of(law::Key(token.bits), token.token); };
  for (const uint32_t token : named) {
    SORTITION_CHECK(token < request.live_vocabulary);
    const TokenBits sent = {token, law::Canonical(SentBits(request, token))};
    if (stated->first.empty() || candidate(sent) < candidate(stated->first.back())) stated->others.push_back(sent);
  }
}

uint64_t SumAt(const Kernels& kernels, const RowView& row, const law::Temperature& temperature, Scratch* scratch) {
  return SumOfWeights(kernels, row, kLastLive, MakeRowScale(temperature, row.max_key), scratch);
}

// True if only the first token is wanted.
bool WantsFirstAlone(const StatedParts& parts) {
  return parts.count == 1 && parts.named.empty() && !parts.unit_sum && !parts.sum;
}

// True if another token than `first` is live. Takes long only where nearly all tokens are masked.
bool HasOther(const RowRequest& request, uint32_t first) {
  for (uint32_t token = 0; token < request.live_vocabulary; ++token) {
    if (token != first && law::Key(law::Canonical(SentBits(request, token))) >= law::kLowestKey) return true;
  }
  return false;
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
  RowView row = LayRow(request, RowCopy(), scratch);
  if (Candidate first; WantsFirstAlone(parts) && kernels.FindPlainFirst(row, &first)) {
    stated->first = {BitsOf(first)};
    stated->is_whole = !HasOther(request, first.token());
    return true;
  }
  RowOutput failure;
  if (!ReadRow(kernels, request, scratch, &row, &failure)) return false;

  // One token more shows whether the list is whole.
  std::span<const Candidate> first;
  if (row.max_key != 0) {
    first = InOrder(SelectAbout(kernels, row, parts.count + 1, law::kLowestKey, scratch, &scratch->leading), scratch);
  }
  stated->is_whole = first.size() <= parts.count;
  first = first.first(std::min<size_t>(first.size(), parts.count));
  stated->first.resize(first.size());
  std::ranges::transform(first, stated->first.begin(), BitsOf);
  StateNamed(request, parts.named, stated);
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
