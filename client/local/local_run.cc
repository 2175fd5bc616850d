// A row as the contract's message, and from there on as a server would have it.
#include "client/local/local_run.h"

#include <numeric>
#include <utility>

#include "client/cpp/compact_rows.h"
#include "client/cpp/errors.h"
#include "client/cpp/row_message.h"
#include "kernels/check.h"
#include "service/limits.h"
#include "service/request/checks.h"
#include "service/request/step_request.h"
#include "service/result/encode.h"
#include "service/result/encode_result.h"

namespace sortition::client {
namespace {

// Returns the shape of a step. This row is number `options.row` in it, and the only one with tensors.
service::StepShape ShapeOf(const service::SequenceSpec& spec, v1::DType dtype, const Row& row,
                           const TensorRows& tensors, const LocalStepOptions& options) {
  service::StepShape shape;
  shape.dtype = KernelType(dtype);
  shape.vocabulary = shape.width = options.vocabulary_size.value_or(spec.vocabulary);
  shape.row_stride = uint64_t{shape.width} * kernels::ElementBytes(shape.dtype);
  shape.tensor_rows = static_cast<uint32_t>(row.positions());
  shape.first_rows.resize(options.row + 1);
  shape.mask_rows = tensors.masks;
  if (tensors.masks > 0) shape.mask_payload = 1;
  shape.draft_rows = tensors.drafts;
  if (tensors.drafts > 0) shape.draft_payload = 2;
  shape.draft_dtype = KernelType(options.draft_dtype);
  return shape;
}

std::optional<service::Refusal> CheckTypes(v1::DType dtype, const Row& row, const LocalStepOptions& options) {
  if (ElementBytes(dtype) == 0) return service::MissingField("step.logits.dtype");
  const bool dense = row.drafts != nullptr && row.drafts->probabilities != nullptr;
  if (dense && ElementBytes(options.draft_dtype) == 0) return service::MissingField("step.draft_probabilities.dtype");
  return std::nullopt;
}

std::vector<service::RowMaskBits> MasksOf(const Row& row, uint32_t vocabulary) {
  std::vector<service::RowMaskBits> masks;
  const size_t words = (size_t{vocabulary} + 31) / 32;
  for (size_t i = 0; i < row.masks(); ++i) {
    masks.push_back(service::RowMaskBits::Lent({row.allowed_bits + i * words, words}));
  }
  return masks;
}

}  // namespace

RowError ToRowError(const service::Refusal& refusal) {
  v1::Error error;
  service::EncodeError(refusal, &error);
  return FromWire(error);
}

std::variant<std::unique_ptr<LocalRun>, service::Refusal> LocalRun::Begin(
    std::shared_ptr<const service::SequenceSpec> spec, const LocalPlace& place, v1::DType dtype, const Row& row,
    const LocalStepOptions& options) {
  if (auto refusal = CheckTypes(dtype, row, options)) return *std::move(refusal);
  v1::StepRow message;
  message.set_step_id(1);
  message.set_position(place.position);
  if (place.state != nullptr) message.set_history_hash(place.state->history_hash());
  TensorRows tensors;
  DescribeTask(row, &message);
  NameTensors(row, &tensors, &message);
  static const service::Limits limits;
  service::RowPlan plan;
  if (auto refusal = service::ParseStepRow(message, static_cast<int>(options.row),
                                           ShapeOf(*spec, dtype, row, tensors, options), *spec, limits, &plan)) {
    return *std::move(refusal);
  }
  plan.sampler_state = place.sampler_state;
  service::StepGrant grant;
  if (place.state != nullptr) {
    grant.views = service::LookAhead(place.state, plan.ahead);
    place.state->LeaveLoan();
  }
  std::vector<service::RowMaskBits> masks = MasksOf(row, spec->vocabulary);
  masks.resize(plan.masks.size());  // a mask may only ban tokens
  return std::unique_ptr<LocalRun>(
      new LocalRun(service::RowRun({{.spec = std::move(spec)}, std::move(plan), std::move(masks), std::move(grant)}),
                   dtype, row, options));
}

LocalRun::LocalRun(service::RowRun run, v1::DType dtype, const Row& row, const LocalStepOptions& options)
    : run_(std::move(run)),
      dtype_(KernelType(dtype)),
      logits_(static_cast<const std::byte*>(row.logits)),
      draft_dtype_(KernelType(options.draft_dtype)),
      probabilities_(row.drafts == nullptr ? nullptr : static_cast<const std::byte*>(row.drafts->probabilities)) {}

kernels::RowRequest LocalRun::RequestAt(uint32_t index) const {
  const auto row_of = [&](const std::byte* tensor, size_t row, kernels::DType dtype) {
    return tensor + row * run_.spec().vocabulary * kernels::ElementBytes(dtype);
  };
  const std::byte* dense = nullptr;
  if (const auto draft_row = run_.DraftRowAt(index)) dense = row_of(probabilities_, *draft_row, draft_dtype_);
  kernels::RowRequest request = run_.RequestAt(index, dtype_, dense, draft_dtype_);
  request.logits = row_of(logits_, index, dtype_);
  return request;
}

LocalRun::Requests LocalRun::First() {
  asked_.resize(run_.first_positions());
  std::iota(asked_.begin(), asked_.end(), 0u);
  Requests requests;
  for (const uint32_t index : asked_) requests.push_back(RequestAt(index));
  return requests;
}

LocalRun::Requests LocalRun::Continue(std::span<kernels::RowOutput> answers) {
  SORTITION_CHECK(answers.size() == asked_.size());
  service::RowRun::Progress progress;
  for (size_t i = 0; i < answers.size(); ++i) progress = run_.Take(asked_[i], std::move(answers[i]));
  if (!progress.next) return {};
  asked_.front() = progress.next->index;
  Requests requests = {RequestAt(asked_.front())};
  progress.next->Set(&requests.front());
  return requests;
}

RowResult LocalRun::Encode(const service::RowResult& result) const {
  google::protobuf::RepeatedPtrField<v1::RowResult> pieces;
  service::EncodeResult(result, plan(), run_.spec(), {}, &pieces);
  for (int i = 1; i < pieces.size(); ++i) AppendPart(std::move(pieces[i]), &pieces[0]);
  return ResultOf(std::move(pieces[0]));
}

}  // namespace sortition::client
