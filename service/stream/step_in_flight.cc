// What a step's rows need, on its way to the batcher.
#include "service/stream/step_in_flight.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "service/request/payload_view.h"
#include "service/result/encode.h"

namespace sortition::service {
namespace {

// Row `row` of a step's draft probabilities; `memory` holds one that arrived in pieces.
const std::byte* DraftProbabilities(const PayloadView& drafts, uint32_t row, uint64_t stride,
                                    std::vector<std::byte>* memory) {
  SORTITION_CHECK(!drafts.may_change());
  const auto segments = drafts.Slice(row * stride, stride);
  if (segments.size() == 1) return segments[0].data;
  memory->resize(stride);
  drafts.Copy(row * stride, stride, memory->data());
  return memory->data();
}

}  // namespace

StepInFlight::StepInFlight(uint64_t batch_id, uint32_t rows, Frame frame, Batcher* batcher,
                           std::shared_ptr<StepAnswers> answers)
    : batch_id_(batch_id),
      rows_(rows),
      frame_(std::move(frame)),
      batcher_(*batcher),
      answers_(std::move(answers)),
      unanswered_(rows) {
  immediate_.set_batch_id(batch_id);
}

void StepInFlight::AddRow(std::string request_id, RowRun run, const StepShape& shape, const Tensors& tensors) {
  auto row = std::make_unique<Row>(std::move(run));
  const uint32_t positions = row->run.plan().positions();
  row->positions.resize(positions);
  for (uint32_t i = 0; i < positions; ++i) AddPosition(i, request_id, shape, tensors, row.get());
  running_.push_back(std::move(row));
}

void StepInFlight::AddPosition(uint32_t index, const std::string& request_id, const StepShape& shape,
                               const Tensors& tensors, Row* row) {
  Position& position = row->positions[index];
  position.queued.index = static_cast<uint32_t>(queued_.size());
  position.queued.sequence = request_id;
  devices::DeviceRow& queued = position.queued.row;
  if (!shape.shard) {
    queued.segments =
        tensors.logits.Slice((row->run.plan().tensor_row + index) * shape.row_stride,
                             uint64_t{row->run.spec().live_vocabulary} * kernels::ElementBytes(shape.dtype));
    queued.may_change = tensors.logits.may_change();
    queued.imported = tensors.logits.imported();
    if (queued.imported != nullptr) queued.memory = queued.imported->memory();
  }
  const std::byte* dense = nullptr;
  if (const std::optional<uint32_t> draft_row = row->run.DraftRowAt(index)) {
    dense = DraftProbabilities(*tensors.drafts, *draft_row, shape.draft_stride, &position.draft);
  }
  queued.request = row->run.RequestAt(index, shape.dtype, dense, shape.draft_dtype);
  queued_.emplace_back(row, index);
}

void StepInFlight::AnswerNow(const RowPlan& plan, const SequenceSpec& spec, const RowResult& result) {
  EncodeAnswer(plan, spec, result, &immediate_);
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
  {
    absl::MutexLock lock(&mutex_);
    not_gathered_ = running_.size();
  }
  std::vector<QueuedRow> rows;
  rows.reserve(queued_.size());
  for (const auto& [row, position] : queued_) {
    if (position < row->run.first_positions()) rows.push_back(std::move(row->positions[position].queued));
  }
  return rows;
}

void StepInFlight::SendImmediate() {
  if (immediate_.rows_size() > 0) Send(std::move(immediate_));
}

void StepInFlight::AbortRows() {
  for (auto& row : running_) row->run.Abort();
}

}  // namespace sortition::service
