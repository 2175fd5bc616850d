// Runs the kernels of the processor over rows from a file, with the history that the receipts give.
#include "client/receipts/receipt_rows.h"

#include <bit>

#include "absl/strings/str_cat.h"
#include "client/receipts/receipt_draw.h"
#include "kernels/cpu/sample_row.h"
#include "kernels/law/chain.h"
#include "kernels/law/logprob.h"
#include "kernels/law/race_place.h"
#include "service/text/look_ahead.h"
#include "service/text/row.h"

namespace sortition::client {
namespace {

using service::Receipt;
using service::ReceiptMethod;

kernels::DType KernelType(v1::DType dtype) {
  if (dtype == v1::DTYPE_F32) return kernels::DType::kF32;
  return dtype == v1::DTYPE_F16 ? kernels::DType::kF16 : kernels::DType::kBF16;
}

}  // namespace

bool ReceiptRows::Begin(const CheckedChain& chain) {
  const service::SequenceSpec& stated = *chain.spec;
  if (kernels::KeepsSamplerState(stated.parameters.chain) || chain.has_watermark) {
    status_ = absl::InvalidArgumentError("--logits: rows with mirostat, adaptive_p or a watermark cannot be compared");
    return false;
  }
  const auto draws = [](const service::PhaseOptions& options) { return !options.parameters.greedy; };
  if (!chain.seed && stated.AnyOptions(draws)) {
    status_ =
        absl::InvalidArgumentError("--logits: no seed of this sequence is opened (--seeds), so no row can be drawn");
    return false;
  }
  for (const uint32_t token : options_.prompt) {
    if (token < stated.live_vocabulary) continue;
    status_ = absl::InvalidArgumentError(absl::StrCat("--prompt: ", token, " is not in the live vocabulary"));
    return false;
  }
  auto matrix = RowMatrix::Open(options_.path, options_.dtype, stated.vocabulary);
  if (!matrix.ok()) {
    status_ = absl::InvalidArgumentError(absl::StrCat("--logits: ", matrix.status().message()));
    return false;
  }
  matrix_ = *std::move(matrix);
  auto spec = std::make_shared<service::SequenceSpec>(stated);
  spec->seed = chain.seed.value_or(0);
  spec->parameters.kept_tokens = spec->parameters.processed_logprob = true;
  for (service::Phase& phase : spec->history.phases) {
    phase.options.parameters.kept_tokens = phase.options.parameters.processed_logprob = true;
  }
  spec_ = std::move(spec);
  if (!options_.masks.empty()) {
    auto masks = ReceiptMasks::Open(options_.masks, *spec_);
    if (!masks.ok()) {
      status_ = masks.status();
      return false;
    }
    masks_ = *std::move(masks);
  }
  if (!spec_->stateful()) return true;
  state_ = service::Text::Build(spec_, options_.prompt, static_cast<uint32_t>(options_.prompt.size()), 1u << 30);
  return true;
}

void ReceiptRows::Take(const std::string& id, const CheckedChain& chain, const Receipt& receipt, ReceiptCheck* check) {
  counts_.has_tolerance = options_.tolerance.has_value();
  if (chain.spec == nullptr || !status_.ok()) return;
  if (chain_.empty() && (options_.chain.empty() || options_.chain == id)) {
    chain_ = id;
    if (!Begin(chain)) return;
  }
  if (id != chain_) return;
  const uint64_t row = next_row_++;
  if (row >= matrix_->rows() || receipt.token >= spec_->live_vocabulary) return;
  kernels::NoiseKey noise;
  const auto output = Run(receipt, &noise);
  if (!output) return;
  ++counts_.compared;
  const std::string difference = DifferenceOf(receipt, *output, noise);
  if (difference.empty()) {
    ++counts_.agreed;
  } else {
    check->Report("wrong_row", id, receipt.index, absl::StrCat("position ", receipt.position, ": ", difference));
  }
}

std::optional<kernels::RowOutput> ReceiptRows::Run(const Receipt& receipt, kernels::NoiseKey* noise) {
  std::string bytes;
  status_ = matrix_->Read(next_row_ - 1, &bytes);
  if (!status_.ok()) return std::nullopt;
  service::PositionViews views;
  if (state_ != nullptr) {
    // A retried or rewritten text goes back; a gap cannot be filled.
    if (receipt.position < state_->position() && receipt.position >= state_->lowest_truncation()) {
      state_->Rewrite(receipt.position, {});
    }
    if (receipt.position != state_->position()) return std::nullopt;
    views = service::LookAhead(state_.get(), {});
  }
  const service::PositionView* const view = views.empty() ? nullptr : &views.front();
  phase_ = view != nullptr ? view->phase : service::kNoPhase;
  kernels::RowRequest request = service::MakeRowRequest(*spec_, view, receipt.position, receipt.draw_salt);
  request.logits = bytes.data();
  request.dtype = KernelType(matrix_->dtype());
  std::vector<uint32_t> mask;
  const absl::Status found = masks_.Find(receipt, &mask);
  if (!found.ok() && !absl::IsNotFound(found)) {
    status_ = found;
    return std::nullopt;
  }
  if (!mask.empty()) request.allowed_bits = mask.data();
  const bool draws = receipt.method == ReceiptMethod::kRace || receipt.method == ReceiptMethod::kGreedy;
  if (!draws) {
    request.task = kernels::RowTask::kScore;
    request.given = receipt.token;
  }
  service::ForceToken(view, &request);
  *noise = request.noise;
  static thread_local kernels::cpu::Scratch scratch;
  std::optional<kernels::RowOutput> output;
  if (found.ok()) {
    kernels::cpu::SampleRow(request, &scratch, &output.emplace());
  } else {
    ++counts_.no_mask;
  }
  if (state_ != nullptr) {
    state_->EndLoan();
    state_->Append(receipt.token);
  }
  return output;
}

std::string ReceiptRows::DifferenceOf(const Receipt& receipt, const kernels::RowOutput& output,
                                      const kernels::NoiseKey& noise) const {
  if (output.error != kernels::RowFault::kNone) return "the logits are those of no row";
  if (receipt.phase != phase_) {
    return absl::StrCat("phase ", receipt.phase, " is stated, the history gives ", phase_);
  }
  const kernels::RowParameters& parameters = spec_->Within(phase_).parameters;
  if (options_.tolerance) {
    if (receipt.method != ReceiptMethod::kRace)
      return output.token == receipt.token ? "" : "another token is the first";
    const law::RacePlace place =
        law::RacePlaceOf(output.kept_tokens, law::ProcessedScale(parameters, output), noise, receipt.token);
    const double margin = law::MarginOf(place);
    if (margin <= *options_.tolerance) return "";
    return absl::StrCat("token ", receipt.token, " loses the race by ", margin, " nats, ", *options_.tolerance,
                        " are allowed");
  }
  if (output.token != receipt.token) {
    return absl::StrCat("token ", receipt.token, " is stated, the logits give ", output.token);
  }
  if (output.kept != receipt.kept_count || (receipt.lists_kept && output.kept_tokens != receipt.kept)) {
    return absl::StrCat("the logits keep other tokens, or give them other logits (", receipt.kept_count,
                        " are stated, ", output.kept, " kept)");
  }
  const float logprob =
      law::Logprob(output.processed, output.processed.chosen.bits, law::ProcessedTemperature(parameters, output));
  return std::bit_cast<uint32_t>(logprob) == receipt.logprob_bits ? "" : "the logits give another logprob";
}

}  // namespace sortition::client
