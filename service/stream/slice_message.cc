// Answers of messages of slices, and where a row's logits lie.
#include "service/stream/slice_message.h"

#include <algorithm>

#include "service/result/encode.h"
#include "service/stream/step_in_flight.h"

namespace sortition::service {

SliceMessage::SliceMessage(StepShape shape, Frame frame, std::shared_ptr<SliceOwner> owner)
    : shape_(std::move(shape)),
      frame_(std::move(frame)),
      owner_(std::move(owner)),
      logits_(frame_.payloads[shape_.logits_payload]),
      unanswered_(static_cast<uint32_t>(message().rows_size())) {}

SliceMessage::SliceMessage(StepShape shape, std::shared_ptr<StepInFlight> step, std::shared_ptr<SliceOwner> owner)
    : shape_(std::move(shape)),
      step_(std::move(step)),
      owner_(std::move(owner)),
      logits_(step_->frame().payloads[shape_.logits_payload]),
      unanswered_(0) {}

const Frame& SliceMessage::frame() const { return step_ == nullptr ? frame_ : step_->frame(); }

uint64_t SliceMessage::FirstTensorRow(uint32_t index) const {
  return row(index).has_tensor_row() ? row(index).tensor_row() : shape_.first_rows[index];
}

void SliceMessage::Answer(v1::StepResults results) {
  if (step_ != nullptr) {
    for (const v1::RowResult& row : results.rows()) step_->AbortRow(row.row());
    return step_->SendToItsStream(std::move(results));
  }
  results.set_batch_id(message().batch_id());
  unanswered_.Answer(std::move(results), [&](v1::StepResults message, bool last) {
    owner_->AnswerSlices(std::move(message), frame_.bytes, last);
  });
}

void SliceAnswers::Add(const RowSlice& slice, v1::RowResult result) {
  const auto is_its = [&](const auto& entry) { return entry.first == slice.message; };
  auto it = std::ranges::find_if(messages_, is_its);
  if (it == messages_.end()) it = messages_.emplace(messages_.end(), slice.message, v1::StepResults());
  result.set_row(slice.row);
  *it->second.add_rows() = std::move(result);
}

void SliceAnswers::Refuse(const RowSlice& slice, const Refusal& refusal) {
  v1::RowResult result;
  result.set_step_id(slice.asked().step_id());
  EncodeError(refusal, result.mutable_error());
  Add(slice, std::move(result));
}

void SliceAnswers::Send() {
  for (auto& [message, results] : std::exchange(messages_, {})) message->Answer(std::move(results));
}

}  // namespace sortition::service
