// The first tokens through group maxima; sums as the kernel of whole rows has them.
#include "kernels/cpu/state_row.h"

#include <algorithm>
#include <functional>

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

uint64_t SumAt(const Kernels& kernels, const Row& row, const law::Temperature& temperature, Scratch* scratch) {
  RowParameters parameters;
  parameters.multiplier = temperature.multiplier;
  parameters.exponent = temperature.exponent;
  parameters.window = temperature.window;
  return SumOfWeights(kernels, row, kLastLive, ScaleOf(parameters, row.max_key), scratch);
}

}  // namespace

bool StateRow(const Target& target, const RowRequest& request, const StatedParts& parts, Scratch* scratch,
              StatedRow* stated) {
  CheckAllButEdits(request);
  SORTITION_CHECK(parts.count > 0);
  const Kernels& kernels = target.kernels;
  *stated = StatedRow();
  Row row = LayRow(request, RowCopy(), scratch);
  RowOutput failure;
  if (!ReadRow(kernels, request, scratch, &row, &failure)) return false;

  // One token more shows whether the list is whole.
  std::span<Candidate> first;
  if (row.max_key != 0) {
    first = SelectFirst(kernels, row, parts.count + 1, law::kLowestKey, scratch, &scratch->leading);
  }
  std::sort(first.begin(), first.end(), std::greater<>());
  stated->is_whole = first.size() <= parts.count;
  first = first.first(std::min<size_t>(first.size(), parts.count));
  stated->first.reserve(first.size());
  for (const Candidate& candidate : first) stated->first.push_back(BitsOf(candidate));

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
