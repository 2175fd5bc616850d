// A step whose rows come in slices, which are completed one by one.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "service/result/encode.h"
#include "service/result/split_results.h"
#include "service/stream/step_in_flight.h"

namespace sortition::service {
namespace {

// The worker opens the sequence again and repeats its slice; no other rank has to know.
bool IsMendedByOpening(v1::ErrorReason reason) {
  switch (reason) {
    case v1::HISTORY_REQUIRED:
    case v1::STALE_STEP:
    case v1::STEP_CONFLICT:
    case v1::STEP_IN_FLIGHT:
    case v1::UNKNOWN_SEQUENCE:
      return true;
    default:
      return false;
  }
}

}  // namespace

void StepInFlight::SendWhatIsSettled() {
  slices_.resize(rows_);
  for (const std::unique_ptr<Row>& row : running_) slices_[row->index].row = row.get();
  v1::StepResults settled;
  settled.set_batch_id(batch_id_);
  const bool answers_are_kept = frame_.message.step().logits().shard().epoch() != 0;
  for (v1::RowResult& result : *immediate_.mutable_rows()) {
    const bool settles = result.has_error() ? IsMendedByOpening(result.error().reason()) : answers_are_kept;
    (settles ? settled : slices_[result.row()].held).mutable_rows()->Add(std::move(result));
  }
  immediate_.clear_rows();
  if (settled.rows_size() > 0) Send(std::move(settled));
  if (repeated_.rows_size() > 0) SendToItsStream(std::move(repeated_));
}

std::vector<uint32_t> StepInFlight::WaitingRows() const {
  std::vector<uint32_t> waiting;
  for (uint32_t index = 0; index < slices_.size(); ++index) {
    if (slices_[index].row != nullptr || slices_[index].held.rows_size() > 0) waiting.push_back(index);
  }
  return waiting;
}

bool StepInFlight::SetSlices(const std::vector<RowSlice>& slices) {
  const auto own = std::ranges::find_if(slices, [](const RowSlice& slice) { return slice.message->step() != nullptr; });
  const uint32_t index = own->row;
  Slices& of_row = slices_[index];
  for (const RowSlice& slice : slices) {
    if (slice.message->step() == nullptr) of_row.others.push_back(slice);
  }
  if (of_row.held.rows_size() > 0) {
    Send(std::exchange(of_row.held, {}));
    return false;
  }
  Row& row = *of_row.row;
  for (const RowSlice& slice : slices) {
    const StepShape& shape = slice.message->shape();
    if (slice.message->FirstTensorRow(slice.row) + row.positions.size() <= shape.tensor_rows) continue;
    RefuseRows({&index, 1}, Refusal{Reason::kOutOfRange, absl::StrCat("step.rows[", slice.row, "].tensor_row"),
                                    absl::StrCat("< ", shape.tensor_rows),
                                    absl::StrCat("the tensor of slice ", shape.shard->index, " has no such row")});
    return false;
  }
  const uint32_t live = row.run.spec().live_vocabulary;
  for (const RowSlice& slice : slices) {
    const StepShape& shape = slice.message->shape();
    if (live <= shape.shard->first_token) continue;  // padding, all of it
    const PayloadView& logits = slice.message->logits();
    const uint64_t bytes =
        uint64_t{std::min(shape.width, live - shape.shard->first_token)} * kernels::ElementBytes(shape.dtype);
    for (size_t i = 0; i < row.positions.size(); ++i) {
      const auto part = logits.Slice((slice.message->FirstTensorRow(slice.row) + i) * shape.row_stride, bytes);
      devices::DeviceRow& queued = row.positions[i].queued.row;
      queued.segments.insert(queued.segments.end(), part.begin(), part.end());
      queued.may_change |= logits.may_change();
    }
  }
  return true;
}

std::vector<QueuedRow> StepInFlight::TakeRow(uint32_t index) {
  Row& row = *slices_[index].row;
  std::vector<QueuedRow> queued;
  for (uint32_t i = 0; i < row.run.first_positions(); ++i) queued.push_back(std::move(row.positions[i].queued));
  return queued;
}

void StepInFlight::AbortRow(uint32_t index) {
  Row* const row = slices_[index].row;
  if (row != nullptr) row->run.Abort();
}

void StepInFlight::RefuseRows(std::span<const uint32_t> indexes, const Refusal& refusal) {
  v1::StepResults results;
  results.set_batch_id(batch_id_);
  for (const uint32_t index : indexes) {
    AbortRow(index);
    v1::RowResult* const result = results.add_rows();
    result->set_row(index);
    result->set_step_id(frame_.message.step().rows(static_cast<int>(index)).step_id());
    EncodeError(refusal, result->mutable_error());
  }
  Send(std::move(results));
}

void StepInFlight::SendToOtherSlices(const v1::StepResults& results) {
  const v1::VocabularyShard& shard = frame_.message.step().logits().shard();
  SliceAnswers answers;
  for (int i = 0; i < results.rows_size();) {
    const uint32_t index = results.rows(i).row();
    std::vector<v1::RowResult> parts;
    for (; i < results.rows_size() && results.rows(i).row() == index; ++i) parts.push_back(results.rows(i));
    for (const RowSlice& slice : slices_[index].others) {
      for (const v1::RowResult& part : parts) answers.Add(slice, part);
    }
    if (shard.epoch() == 0 || parts.back().has_error()) continue;
    answers_->KeepAnswer(frame_.message.step().rows(static_cast<int>(index)), std::move(parts), shard.count());
  }
  answers.Send();
}

}  // namespace sortition::service
