// Fields of receipts from a row's plan and outputs.
#include "service/text/make_receipts.h"

#include <bit>

#include "kernels/law/chain.h"
#include "kernels/law/logprob.h"
#include "kernels/law/reference_chain.h"

namespace sortition::service {
namespace {

// Returns the position of the result's token `offset`: the one after an accepted draft has the draft's number and one.
uint32_t PositionOf(const RowResult& result, uint32_t offset) { return offset == 0 ? 0 : result.path[offset - 1] + 1; }

ReceiptMethod MethodOf(const kernels::RowOutput& output, uint32_t position, const RowPlan& plan,
                       const kernels::RowParameters& parameters) {
  if (parameters.greedy) return ReceiptMethod::kGreedy;
  if (plan.kind != RowPlan::Kind::kReject) return ReceiptMethod::kRace;
  if (output.accepted) return ReceiptMethod::kAcceptedDraft;
  // At a position without a draft the token is drawn without one.
  return plan.FirstDraftAfter(position) ? ReceiptMethod::kInPlaceOfDraft : ReceiptMethod::kRace;
}

// Returns the hash of the mask of the result's token `offset`.
std::optional<ReceiptHash> MaskHashAt(const RowResult& result, uint32_t offset, const RowPlan& plan) {
  if (plan.mask_hashes.empty()) return std::nullopt;
  return plan.mask_hashes[plan.mask_hashes.size() == 1 ? 0 : PositionOf(result, offset)];
}

ReceiptIntegers IntegersOf(const kernels::RowParameters& parameters) {
  ReceiptIntegers integers;
  integers.greedy = parameters.greedy;
  integers.repetition = parameters.repetition;
  integers.inverse_repetition = parameters.inverse_repetition;
  if (parameters.greedy) return integers;
  for (const law::StageWords& stage : law::StagesOf(parameters)) {
    integers.stages.push_back({stage.kind, stage.a, stage.b, stage.c, stage.d});
  }
  // Stages of a row without a chain lack the temperature itself, from which logprobs follow.
  if (parameters.chain.empty()) integers.stages[0][4] = std::bit_cast<uint32_t>(float(parameters.temperature));
  return integers;
}

}  // namespace

std::vector<ReceiptIntegers> MakeIntegers(const SequenceSpec& spec) {
  std::vector<ReceiptIntegers> integers;
  for (uint32_t phase = kNoPhase; phase <= spec.history.phases.size(); ++phase) {
    integers.push_back(IntegersOf(spec.Within(phase).parameters));
  }
  return integers;
}

std::vector<Receipt> MakeReceipts(const RowResult& result, const RowPlan& plan, const SequenceSpec& spec) {
  std::vector<Receipt> receipts;
  receipts.reserve(result.outputs.size());
  for (uint32_t offset = 0; offset < result.outputs.size(); ++offset) {
    const kernels::RowOutput& output = result.outputs[offset];
    const kernels::RowParameters& parameters = spec.Within(result.PhaseOf(offset)).parameters;
    Receipt& receipt = receipts.emplace_back();
    receipt.step_id = plan.intent.step_id;
    receipt.history_hash = plan.intent.history_hash;
    receipt.position = plan.intent.position + offset;
    receipt.offset = offset;
    receipt.method = MethodOf(output, PositionOf(result, offset), plan, parameters);
    receipt.draw_salt = plan.draw_salt;
    receipt.temperature = output.temperature;
    receipt.token = output.token;
    const double temperature = law::ProcessedTemperature(parameters, output);
    receipt.logprob_bits =
        std::bit_cast<uint32_t>(law::Logprob(output.processed, output.processed.chosen.bits, temperature));
    receipt.kept_count = output.kept;
    receipt.lists_kept = output.kept <= kMaxReceiptTokens;
    if (receipt.lists_kept) receipt.kept = output.kept_tokens;
    receipt.mask = MaskHashAt(result, offset, plan);
    receipt.phase = result.PhaseOf(offset);
  }
  return receipts;
}

}  // namespace sortition::service
