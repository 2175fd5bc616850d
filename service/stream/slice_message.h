// Messages that bring slices of rows, and their answers on the way back: each row of a message is answered once, when
// its other slices have come or it is known that they will not.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "service/refusal.h"
#include "service/request/frame.h"
#include "service/request/payload_view.h"
#include "service/request/step_request.h"
#include "service/stream/unanswered_rows.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

class StepInFlight;

// A stream that has sent slices. Thread-safe; outlives its messages.
class SliceOwner {
 public:
  virtual ~SliceOwner() = default;
  // Answers rows of a message of slices other than 0. `bytes` of the message; `last` if no more of them follow.
  virtual void AnswerSlices(v1::StepResults results, uint64_t bytes, bool last) = 0;
};

// Thread-safe.
class SliceMessage {
 public:
  // Of slices other than 0. The shape has a shard.
  SliceMessage(StepShape shape, Frame frame, std::shared_ptr<SliceOwner> owner);
  // Of the slices 0 of `step`, which holds the message and answers its rows.
  SliceMessage(StepShape shape, std::shared_ptr<StepInFlight> step, std::shared_ptr<SliceOwner> owner);

  const StepShape& shape() const { return shape_; }
  const ShardShape& shard() const { return *shape_.shard; }
  const v1::Step& message() const { return frame().message.step(); }
  const v1::StepRow& row(uint32_t index) const { return message().rows(static_cast<int>(index)); }
  const SliceOwner* owner() const { return owner_.get(); }
  const std::shared_ptr<StepInFlight>& step() const { return step_; }  // null but for slice 0

  const PayloadView& logits() const { return logits_; }
  uint64_t FirstTensorRow(uint32_t index) const;
  // The token behind the slice's last one.
  uint32_t end_token() const { return shard().first_token + shape_.width; }

  // Answers rows, numbered as in this message, with what their step did not compute, so that they do not run any more:
  // slice 0 gives back what its rows hold.
  void Answer(v1::StepResults results);

 private:
  const Frame& frame() const;

  const StepShape shape_;
  const Frame frame_;  // but for slice 0
  const std::shared_ptr<StepInFlight> step_;
  const std::shared_ptr<SliceOwner> owner_;
  const PayloadView logits_;
  UnansweredRows unanswered_;  // but for slice 0
};

// The slice of one row that a message brings.
struct RowSlice {
  std::shared_ptr<SliceMessage> message;
  uint32_t row = 0;  // of the message

  const v1::StepRow& asked() const { return message->row(row); }
};

// Gathers answers, so that each message gets those of its rows together. Not thread-safe.
class SliceAnswers {
 public:
  // A row of the answer, whose number is not looked at.
  void Add(const RowSlice& slice, v1::RowResult result);
  void Refuse(const RowSlice& slice, const Refusal& refusal);
  void Send();

 private:
  std::vector<std::pair<std::shared_ptr<SliceMessage>, v1::StepResults>> messages_;
};

}  // namespace sortition::service
