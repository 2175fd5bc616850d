// From a plan to kernels' requests, and from their answers to the row's.
#include "service/stream/row_run.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "service/result/encode.h"
#include "service/sequence/row_of.h"

namespace sortition::service {
namespace {

// What a row is sampled with where its step asks for more than its sequence.
std::optional<kernels::RowParameters> MoreParameters(const PositionPlan& plan, const SequenceSpec& spec) {
  if (!plan.return_probabilities) return std::nullopt;
  kernels::RowParameters parameters = spec.parameters;
  parameters.processed_logprob = parameters.kept_tokens = true;
  return parameters;
}

// Cuts the step's list to the tokens that the sequence allows, too.
void CutToAllowed(const SequenceSpec& spec, PositionMask* mask) {
  if (!mask->has_allowed_tokens || !spec.has_allowed_tokens) return;
  std::vector<uint32_t> both;
  std::ranges::set_intersection(spec.allowed_tokens, mask->allowed_tokens, std::back_inserter(both));
  mask->allowed_tokens = std::move(both);
}

}  // namespace

std::string MaskField(const PositionPlan& plan, uint32_t row, size_t number) {
  const std::string path = absl::StrCat("step.rows[", row, "].");
  if (plan.masks.size() == 1) return path + "mask";
  return absl::StrCat(path, plan.is_tree ? "verify_tree" : "verify_draft", ".masks[", number, "]");
}

RowRun::RowRun(std::shared_ptr<const SequenceSpec> spec, StepRowRequest request, std::vector<RowMaskBits> masks)
    : spec_(std::move(spec)),
      request_(std::move(request)),
      masks_(std::move(masks)),
      more_(MoreParameters(request_.plan, *spec_)),
      runs_in_order_(plan().positions() > 1 && kernels::KeepsSamplerState(spec_->parameters.chain)),
      results_(plan().positions()),
      missing_(plan().positions()) {
  for (PositionMask& mask : request_.plan.masks) {
    lists_none_.push_back(mask.has_allowed_tokens && mask.allowed_tokens.empty());
    CutToAllowed(*spec_, &mask);
  }
}

std::optional<uint32_t> RowRun::DraftRowAt(uint32_t index) const {
  const std::optional<uint32_t> draft = plan().draft_row ? plan().FirstDraftAfter(index) : std::nullopt;
  return draft ? std::optional(*plan().draft_row + *draft) : std::nullopt;
}

kernels::RowRequest RowRun::RequestAt(uint32_t index, const PositionView* view, kernels::DType dtype, const void* dense,
                                      kernels::DType draft_dtype) const {
  kernels::RowRequest kernel =
      RowOf(*spec_, view, request_.intent.position + plan().DepthOf(index), request_.draw_salt);
  kernel.dtype = dtype;
  kernel.parameters = &sampled_with();
  kernel.sampler_state = request_.sampler_state;
  if (!plan().masks.empty()) {
    const size_t at = plan().masks.size() == 1 ? 0 : index;
    const PositionMask& mask = plan().masks[at];
    if (mask.has_allowed_tokens) {
      kernel.has_allowed_tokens = true;
      kernel.allowed_tokens = mask.allowed_tokens;
    }
    const std::span<const uint32_t> words = masks_[at].words();
    kernel.allowed_bits = words.empty() ? nullptr : words.data();
  }
  if (plan().kind == PositionPlan::Kind::kScore) {
    kernel.task = kernels::RowTask::kScore;
    kernel.given = plan().scored[index];
    return kernel;
  }
  ForceToken(view, &kernel);
  const std::optional<uint32_t> draft = plan().FirstDraftAfter(index);
  if (!draft) return kernel;
  kernel.given = plan().ahead.tokens[*draft];
  if (plan().kind != PositionPlan::Kind::kReject) {
    kernel.likely = kernel.given;
    return kernel;
  }
  kernel.task = kernels::RowTask::kVerify;
  if (!plan().sparse.empty()) {
    kernel.draft.form = kernels::DraftDistribution::Form::kSparse;
    kernel.draft.sparse_tokens = plan().sparse[*draft].tokens;
    kernel.draft.sparse_bits = plan().sparse[*draft].bits;
  } else if (dense != nullptr) {
    kernel.draft.form = kernels::DraftDistribution::Form::kDense;
    kernel.draft.dtype = draft_dtype;
    kernel.draft.dense = dense;
  }
  return kernel;
}

bool RowRun::Take(uint32_t index, PositionResult result) {
  results_[index] = std::move(result);
  return --missing_ == 0;
}

std::optional<RowRun::Next> RowRun::After(uint32_t index) const {
  const PositionResult& taken = *results_[index];
  const std::optional<uint32_t> next = PositionAfter(plan(), spec_->stop_tokens, index, taken);
  if (!next) return std::nullopt;
  // The token that the text goes on with is the answer's, whether it was drawn, accepted or given.
  return Next{*next, std::get<kernels::RowOutput>(taken).sampler_state};
}

std::variant<StepOutcome, Refusal> RowRun::Finish(uint32_t row) {
  auto walked = Walk(plan(), spec_->stop_tokens, absl::MakeSpan(results_));
  if (auto* outcome = std::get_if<StepOutcome>(&walked)) return std::move(*outcome);
  FailedPosition& failed = std::get<FailedPosition>(walked);
  if (auto* refusal = std::get_if<Refusal>(&failed.why)) return std::move(*refusal);
  return WhyUnusable(row, failed);
}

Refusal RowRun::WhyUnusable(uint32_t row, const FailedPosition& failed) const {
  Refusal refusal = RefusalOf(std::get<kernels::RowOutput>(failed.why), row);
  const size_t mask = plan().masks.size() == 1 ? 0 : failed.index;
  const bool allows_none = (mask < lists_none_.size() && lists_none_[mask]) ||
                           (mask < masks_.size() && masks_[mask].AllowsNone(spec_->live_vocabulary));
  if (refusal.reason == Reason::kNoLiveToken && allows_none) {
    refusal.field = MaskField(plan(), row, mask);
    refusal.message = "the mask allows no token";
  }
  if (plan().positions() > 1) absl::StrAppend(&refusal.message, ", on the row's tensor row ", failed.index);
  return refusal;
}

}  // namespace sortition::service
