// What a step's rows need, on its way to the batcher.
#include "service/stream/step_in_flight.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "service/request/payload_view.h"
#include "service/result/encode.h"
#include "service/sequence/row_of.h"

namespace sortition::service {
namespace {

// What a step's rows are sampled with where it asks for more than its sequence.
std::optional<kernels::RowParameters> MoreParameters(const PositionPlan& plan, const SequenceSpec& spec) {
  if (!plan.return_probabilities) return std::nullopt;
  kernels::RowParameters parameters = spec.parameters;
  parameters.processed_logprob = parameters.kept_tokens = true;
  return parameters;
}

// The drafter's probabilities of draft `index`; `memory` holds dense ones that arrived in pieces.
void SetDraftDistribution(const PositionPlan& plan, uint32_t index, const StepShape& shape,
                          const std::optional<PayloadView>& drafts, kernels::DraftDistribution* draft,
                          std::vector<std::byte>* memory) {
  if (!plan.sparse.empty()) {
    draft->form = kernels::DraftDistribution::Form::kSparse;
    draft->sparse_tokens = plan.sparse[index].tokens;
    draft->sparse_bits = plan.sparse[index].bits;
  } else if (plan.draft_row) {
    draft->form = kernels::DraftDistribution::Form::kDense;
    draft->dtype = shape.draft_dtype;
    const uint64_t begin = (*plan.draft_row + index) * shape.draft_stride;
    const auto segments = drafts->Slice(begin, shape.draft_stride);
    SORTITION_CHECK(!drafts->may_change());
    if (segments.size() == 1) {
      draft->dense = segments[0].data;
    } else {
      memory->resize(shape.draft_stride);
      drafts->Copy(begin, shape.draft_stride, memory->data());
      draft->dense = memory->data();
    }
  }
}

}  // namespace

std::string MaskField(const v1::StepRow& row, int index, size_t number) {
  const std::string path = absl::StrCat("step.rows[", index, "].");
  if (row.has_mask()) return path + "mask";
  return absl::StrCat(path, row.has_verify_tree() ? "verify_tree" : "verify_chain", ".masks[", number, "]");
}

StepInFlight::StepInFlight(uint64_t batch_id, uint32_t rows, Frame frame, SequenceTable* sequences, Batcher* batcher,
                           std::shared_ptr<StepAnswers> answers)
    : batch_id_(batch_id),
      rows_(rows),
      frame_(std::move(frame)),
      sequences_(*sequences),
      batcher_(*batcher),
      answers_(std::move(answers)),
      unanswered_(rows) {
  immediate_.set_batch_id(batch_id);
}

void StepInFlight::AddRow(uint32_t index, std::string request_id, const StreamSequence& sequence,
                          StepRowRequest request, std::optional<StepGrant> grant, std::vector<RowMaskBits> masks,
                          const StepShape& shape, const Tensors& tensors) {
  auto row = std::make_unique<Row>();
  row->index = index;
  row->sequence = sequence;
  row->request = std::move(request);
  row->grant = std::move(grant);
  row->masks = std::move(masks);
  row->parameters = MoreParameters(row->request.plan, *row->sequence.spec);
  const uint32_t positions = row->request.plan.positions();
  row->missing = positions;
  row->runs_in_order = positions > 1 && kernels::KeepsSamplerState(sequence.spec->parameters.chain);
  row->results.resize(positions);
  row->positions.resize(positions);
  for (uint32_t i = 0; i < positions; ++i) AddPosition(i, request_id, shape, tensors, row.get());
  running_.push_back(std::move(row));
}

void StepInFlight::AddPosition(uint32_t index, const std::string& request_id, const StepShape& shape,
                               const Tensors& tensors, Row* row) {
  const SequenceSpec& spec = *row->sequence.spec;
  const PositionPlan& plan = row->request.plan;
  Position& position = row->positions[index];
  position.queued.index = static_cast<uint32_t>(queued_.size());
  position.queued.sequence = request_id;
  if (!shape.shard) {
    position.queued.row.segments =
        tensors.logits.Slice((row->request.tensor_row + index) * shape.row_stride,
                             uint64_t{spec.live_vocabulary} * kernels::ElementBytes(shape.dtype));
    position.queued.row.may_change = tensors.logits.may_change();
  }
  const PositionView* const view = row->grant ? &row->grant->views[index] : nullptr;
  kernels::RowRequest& kernel = position.queued.row.request;
  kernel = RowOf(spec, view, row->request.intent.position + plan.DepthOf(index), row->request.draw_salt);
  kernel.dtype = shape.dtype;
  kernel.parameters = &row->sampled_with();
  kernel.sampler_state = row->request.sampler_state;
  if (!plan.masks.empty()) {
    const size_t at = plan.masks.size() == 1 ? 0 : index;
    const PositionMask& mask = plan.masks[at];
    if (mask.has_allowed_tokens && spec.has_allowed_tokens) {
      std::ranges::set_intersection(spec.allowed_tokens, mask.allowed_tokens, std::back_inserter(position.allowed));
      kernel.allowed_tokens = position.allowed;
    } else if (mask.has_allowed_tokens) {
      kernel.has_allowed_tokens = true;
      kernel.allowed_tokens = mask.allowed_tokens;
    }
    const std::span<const uint32_t> words = row->masks[at].words();
    kernel.allowed_bits = words.empty() ? nullptr : words.data();
  }
  if (plan.kind != PositionPlan::Kind::kScore) ForceToken(view, &kernel);
  if (plan.kind == PositionPlan::Kind::kScore) {
    kernel.task = kernels::RowTask::kScore;
    kernel.given = plan.scored[index];
  } else if (const std::optional<uint32_t> draft = plan.FirstDraftAfter(index)) {
    kernel.given = plan.ahead.tokens[*draft];
    if (plan.kind == PositionPlan::Kind::kReject) {
      kernel.task = kernels::RowTask::kVerify;
      SetDraftDistribution(plan, *draft, shape, tensors.drafts, &kernel.draft, &position.draft);
    } else {
      kernel.likely = kernel.given;
    }
  }
  queued_.emplace_back(row, index);
}

void StepInFlight::AnswerNow(uint32_t index, const StepRowRequest& request, const StreamSequence& sequence,
                             const StepAnswer& answer) {
  EncodeAnswer(index, request, *sequence.spec, answer.outcome, answer.history_hash, &immediate_);
}

void StepInFlight::RefuseNow(uint32_t index, uint64_t step_id, const Refusal& refusal) {
  v1::RowResult* result = immediate_.add_rows();
  result->set_row(index);
  result->set_step_id(step_id);
  EncodeError(refusal, result->mutable_error());
}

void StepInFlight::RepeatNow(uint32_t index, std::vector<v1::RowResult> results) {
  for (v1::RowResult& result : results) {
    result.set_row(index);
    *repeated_.add_rows() = std::move(result);
  }
}

std::vector<QueuedRow> StepInFlight::TakeRows() {
  std::vector<QueuedRow> rows;
  rows.reserve(queued_.size());
  for (const auto& [row, position] : queued_) {
    if (position == 0 || !row->runs_in_order) rows.push_back(std::move(row->positions[position].queued));
  }
  return rows;
}

void StepInFlight::SendImmediate() {
  if (immediate_.rows_size() > 0) Send(std::move(immediate_));
}

void StepInFlight::AbortRows() {
  for (auto& row : running_) {
    if (row->grant) row->sequence.state->Abort(row->grant->ticket);
  }
}

}  // namespace sortition::service
