// Lists the changed row from its first token to the last one that its filters need.
#include "kernels/cpu/compact/decide_row.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cpu/changed_tokens.h"
#include "kernels/cpu/compact/decide_listed.h"
#include "kernels/cpu/compact/describe.h"
#include "kernels/cpu/filter.h"
#include "kernels/cpu/one_edit.h"
#include "kernels/cpu/race.h"
#include "kernels/cpu/scale.h"
#include "kernels/law/compact.h"
#include "kernels/law/reference_row.h"
#include "kernels/law/row_law.h"

namespace sortition::kernels::cpu {
namespace {

// True if the answers besides the token follow from the kept tokens, or are stated.
bool IsKnown(const RowParameters& parameters, const CompactRow& row) {
  if (parameters.tempered_logprob || parameters.kept_log_mass) return false;
  return !parameters.raw_logprob || (row.unit_sum && parameters.raw_top <= row.first.size());
}

// True if the draw is one that DecideDraw decides, as far as the options say.
bool IsPlainDraw(const RowRequest& request, const CompactRow& row) {
  const RowParameters& parameters = *request.parameters;
  const bool names_tokens = !request.requested.empty() || request.wants_race_place;
  if (request.task != RowTask::kDraw || !parameters.chain.empty() || RepetitionRaises(parameters) || names_tokens)
    return false;
  if (row.is_whole || row.first.empty() || !IsKnown(parameters, row)) return false;
  return HasManyUnknown(request, row);
}

// Describes the distribution before the changes from the stated sums and tokens. False if it does not state enough.
bool DescribeRaw(const RowRequest& request, const CompactRow& row, RowOutput* output) {
  const auto chosen = std::ranges::find(row.first, output->token, &TokenBits::token);
  if (chosen == row.first.end()) return false;
  const auto top = std::min<size_t>(request.parameters->raw_top, row.first.size());
  output->raw.max_bits = row.first[0].bits;
  output->raw.weight_sum = *row.unit_sum;
  output->raw.chosen = *chosen;
  output->raw.rank = uint32_t(chosen - row.first.begin()) + 1;
  output->raw.top.assign(row.first.begin(), row.first.begin() + ptrdiff_t(top));
  return true;
}

// Returns the output of a row that keeps these tokens, of which `token` is drawn and `first` is the first in order.
// Absent if the row does not state enough for it.
std::optional<Decision> Answer(const Kernels& kernels, const RowRequest& request, const CompactRow& row,
                               const RowScale& scale, Candidate first, std::span<Candidate> kept, uint32_t token,
                               Scratch* scratch) {
  const RowParameters& parameters = *request.parameters;
  RowOutput output;
  output.token = token;
  if (parameters.processed_logprob || parameters.kept_count || parameters.kept_tokens) {
    output.kept = uint32_t(kept.size());
  }
  if (parameters.raw_logprob && !DescribeRaw(request, row, &output)) return std::nullopt;
  RowView changed;
  changed.max_key = first.key();
  const Kept all = Kept::Of(kept);
  if (parameters.processed_logprob && parameters.greedy) {
    DescribePointMass(first, first, parameters.processed_top, {}, &output.processed);
  } else if (parameters.processed_logprob) {
    const Candidate chosen = *std::ranges::find(kept, token, &Candidate::token);
    Describe(kernels, changed, scale, all, chosen, parameters.processed_top, {}, scratch, &output.processed);
  }
  if (parameters.entropy) {
    output.entropy =
        parameters.greedy ? EntropySums{law::kUnitWeight, 0} : SumEntropy(kernels, changed, scale, all, scratch);
  }
  if (parameters.kept_tokens) ListKept(kernels, changed, all, scratch, &output.kept_tokens);
  return output;
}

}  // namespace

std::optional<Decision> DecideDraw(const Target& target, const RowRequest& request, const CompactRow& row,
                                   bool may_raise, Scratch* scratch) {
  if (!IsPlainDraw(request, row)) return std::nullopt;
  Fetch(request.edits);
  const Kernels& kernels = target.kernels;
  const RowParameters& parameters = *request.parameters;
  ChangedTokens tokens(request, row, scratch);
  std::vector<uint32_t> unknown;
  if (may_raise && !tokens.Raise(&unknown)) return std::nullopt;
  if (!unknown.empty()) return RowRequired{RowRequiredReason::kTokens, std::move(unknown)};

  const Candidate first = tokens.Next();
  if (first == ChangedTokens::kNone) return RowRequired{RowRequiredReason::kCut};
  const RowScale scale = MakeRowScale(parameters, first.key());
  if (parameters.greedy) {
    Candidate alone = first;
    return Answer(kernels, request, row, scale, first, {&alone, 1}, first.token(), scratch);
  }
  const bool min_p = parameters.min_p_distance != RowParameters::kMinPOff;
  const uint32_t floor =
      min_p ? FirstKeyWithin(law::MakeBound(parameters.min_p_distance), first.key(), scale.scale) : 1;
  // Lists the tokens that min-p keeps, at most top_k of them.
  Candidate* const listed = scratch->kept.Reserve(row.first.size() + ChangedTokens::kMostRaised);
  size_t count = 0;
  const auto is_full = [&] { return parameters.top_k != 0 && count == parameters.top_k; };
  Candidate next = first;
  while (next.key() >= floor) {
    listed[count++] = next;
    if (is_full()) break;
    next = tokens.Next();
  }
  if (next == ChangedTokens::kNone && tokens.last().key() >= floor) {
    if (parameters.top_k != 0) return RowRequired{RowRequiredReason::kCut};
    if (parameters.top_p != 0) return std::nullopt;
    return RowRequired{RowRequiredReason::kRow};
  }
  std::span<Candidate> kept(listed, count);
  if (parameters.top_p != 0) kept = TopPOfCandidates(kernels, parameters.top_p, scale, kept, scratch);
  if (kept.size() > Kept::kMostListed) return std::nullopt;
  const uint32_t token =
      Draw(kernels, RowView(), scale, Kept::Of(kept), law::ToDrawKey(request.noise), std::nullopt, scratch);
  return Answer(kernels, request, row, scale, first, kept, token, scratch);
}

Decision DecideRow(const Target& target, const RowRequest& request, const CompactRow& row, bool may_raise,
                   Scratch* scratch) {
  if (auto decision = DecideDraw(target, request, row, may_raise, scratch)) return *std::move(decision);
  if (auto decision = DecideListed(request, row, may_raise, scratch)) return *std::move(decision);
  return law::SampleCompactRowReference(request, row);
}

Decision DecideRow(const RowRequest& request, const CompactRow& row, bool may_raise, Scratch* scratch) {
  return DecideRow(BestTarget(), request, row, may_raise, scratch);
}

}  // namespace sortition::kernels::cpu
