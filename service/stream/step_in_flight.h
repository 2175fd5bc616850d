// A step between its arrival and its last answer: what its rows need, and how their results become messages.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "service/batch/batcher.h"
#include "service/request/payload_view.h"
#include "service/request/step_request.h"
#include "service/sequence/sequence_table.h"
#include "service/stream/frame.h"
#include "service/stream/shard_table.h"
#include "service/stream/stream_sequence.h"

namespace sortition::service {

class StepInFlight;

// Takes the answers of steps. Thread-safe.
class StepAnswers {
 public:
  virtual ~StepAnswers() = default;
  // Some rows of `step` are answered; `last` if no more follow.
  virtual void Answer(v1::StepResults results, const StepInFlight& step, bool last) = 0;
  // False once nobody waits for answers any more: results are dropped and sequences keep the state before the step.
  virtual bool Wanted() const = 0;
};

class StepInFlight : public PendingStep {
 public:
  // `rows` is the number of rows of the step message. `sequences` is not owned and outlives the step.
  StepInFlight(uint64_t batch_id, uint32_t rows, Frame frame, SequenceTable* sequences,
               std::shared_ptr<StepAnswers> answers);

  // Building, before the step is submitted; by one thread. A row is either added to run or answered at once.
  // `mask_words` is the packed mask of this row, empty if it has none. Of a slice no logits are taken here.
  void AddRow(uint32_t index, std::string request_id, const StreamSequence& sequence, StepRowRequest request,
              std::optional<StepGrant> grant, std::vector<uint32_t> mask_words, const StepShape& shape,
              const PayloadView& logits);
  void AnswerNow(uint32_t index, uint64_t step_id, const StreamSequence& sequence, const StepAnswer& answer);
  void RefuseNow(uint32_t index, uint64_t step_id, const Refusal& refusal);

  // Of a step that came in slices, all of them by their first token: gives the rows their logits, and the other slices'
  // streams the answers. Before TakeRows.
  void SetShards(const std::vector<StepShard>& shards);
  // The rows to submit, referring to memory of this object.
  std::vector<QueuedRow> TakeRows();
  // Sends what was answered at once, if anything.
  void SendImmediate();
  // Takes back every row added: their sequences keep the state before the step.
  void AbortRows();

  void Deliver(std::vector<RowOutcome> outcomes) override;

  uint64_t batch_id() const { return batch_id_; }
  uint32_t rows() const { return rows_; }
  uint64_t frame_bytes() const { return frame_.bytes; }
  const Frame& frame() const { return frame_; }
  // Rows answered with an error so far; counted if the step is traced.
  uint32_t refused_rows() const { return refused_.load(std::memory_order_relaxed); }

  bool traced = false;  // set before the step is submitted

 private:
  struct Row {
    uint32_t index = 0;
    StreamSequence sequence;
    StepRowRequest request;
    std::optional<StepGrant> grant;    // if the sequence keeps state
    std::vector<uint32_t> mask_words;  // this step's packed mask
    std::vector<uint32_t> allowed;     // intersection of the sequence's and the step's lists, if both are given
    QueuedRow queued;
  };

  void Encode(const Row& row, std::variant<kernels::RowAnswer, Refusal> result, v1::RowResult* out);
  void Send(v1::StepResults results);

  const uint64_t batch_id_;
  const uint32_t rows_;
  const Frame frame_;
  SequenceTable& sequences_;
  const std::shared_ptr<StepAnswers> answers_;
  std::vector<std::unique_ptr<Row>> running_;  // fixed once submitted
  std::vector<int32_t> running_of_index_;
  v1::StepResults immediate_;
  std::vector<StepShard> followers_;  // slices other than 0; fixed once submitted

  std::atomic<uint32_t> refused_ = 0;
  absl::Mutex mutex_;
  uint32_t unanswered_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sortition::service
