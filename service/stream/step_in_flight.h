// A step between its arrival and its last answer: what its rows need (step_in_flight.cc), and how their results become
// messages (step_answers.cc).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/synchronization/mutex.h"
#include "service/batch/batcher.h"
#include "service/memory/mask_memory.h"
#include "service/request/frame.h"
#include "service/request/payload_view.h"
#include "service/request/step_request.h"
#include "service/row/row.h"
#include "service/sequence/checkpoint.h"
#include "service/stream/slice_message.h"
#include "service/stream/unanswered_rows.h"

namespace sortition::service {

class StepInFlight;

// Takes the answers of steps. Thread-safe.
class StepAnswers {
 public:
  virtual ~StepAnswers() = default;
  // Some rows of `step` are answered; `last` if no more follow.
  virtual void Answer(v1::StepResults results, const StepInFlight& step, bool last) = 0;
  // What the worker sends back with the next step of a sequence whose sampler keeps a state.
  virtual std::string SealCheckpoint(const std::string& request_id, const SequenceSpec& spec,
                                     const Checkpoint& checkpoint) const = 0;
  // False once nobody waits for answers any more: results are dropped and sequences keep the state before the step.
  virtual bool Wanted() const = 0;
  // Of a row that came in slices of `ranks` streams: before the answer leaves, for those of them that lose it.
  // `results` are the answer in its parts.
  virtual void KeepAnswer(const v1::StepRow& asked, std::vector<v1::RowResult> results, uint32_t ranks) = 0;
};

// Owned by a shared_ptr, which it gives to the batcher again for rows that run one after the other.
class StepInFlight : public PendingStep, public std::enable_shared_from_this<StepInFlight> {
 public:
  // `rows` is the number of rows of the step message. `batcher` is not owned and outlives the step.
  StepInFlight(uint64_t batch_id, uint32_t rows, Frame frame, Batcher* batcher, std::shared_ptr<StepAnswers> answers);

  // Tensors of the step's message.
  struct Tensors {
    const PayloadView& logits;
    const std::optional<PayloadView>& masks;
    const std::optional<PayloadView>& drafts;
  };

  // Building, before the step is submitted; by one thread. A row is either added to run or answered at once.
  // Of a slice no logits are taken.
  void AddRow(std::string request_id, RowRun run, const StepShape& shape, const Tensors& tensors);
  void AnswerNow(const RowPlan& plan, const SequenceSpec& spec, const RowResult& result);
  void RefuseNow(uint32_t index, uint64_t step_id, const Refusal& refusal);
  // With an answer of rows in slices that is kept.
  void RepeatNow(uint32_t index, std::vector<v1::RowResult> results);

  // Of a step whose rows come in slices.
  // Sends answers that others find with the kept ones, and refusals that the worker mends by opening the sequence
  // again: its slice comes again, and the others wait for it. Other answers and refusals are held until all slices are
  // there.
  void SendWhatIsSettled();
  // The rows that wait for their other slices.
  std::vector<uint32_t> WaitingRows() const;
  // All slices of a row, by their first token: gives the row its logits, and the other slices its answers. False if
  // those were held, and are sent now, or if a slice does not have the row, which all are told.
  // Rows may be completed by several threads at once, each by one.
  bool SetSlices(const std::vector<RowSlice>& slices);
  std::vector<QueuedRow> TakeRow(uint32_t index);
  // Gives up a row that will not be submitted: its sequence keeps the state before the step.
  void AbortRow(uint32_t index);
  void RefuseRows(std::span<const uint32_t> indexes, const Refusal& refusal);
  void SendToItsStream(v1::StepResults results);

  // The rows to submit, referring to memory of this object; others may follow while these are delivered.
  std::vector<QueuedRow> TakeRows();
  // Sends what was answered at once, if anything.
  void SendImmediate();
  // Takes back every row added: their sequences keep the state before the step.
  void AbortRows();

  void Deliver(std::vector<QueuedOutput> outputs) override;

  uint64_t batch_id() const { return batch_id_; }
  uint32_t rows() const { return rows_; }
  uint64_t frame_bytes() const { return frame_.bytes; }
  const Frame& frame() const { return frame_; }
  // Rows answered with an error so far; counted if the step is traced.
  uint32_t refused_rows() const { return refused_.load(std::memory_order_relaxed); }

  bool traced = false;  // set before the step is submitted

 private:
  // What a device is given for one position of a row.
  struct Position {
    std::vector<std::byte> draft;  // probabilities that were copied
    QueuedRow queued;
  };
  struct Row {
    explicit Row(RowRun its_run) : run(std::move(its_run)), index(run.plan().row) {}

    RowRun run;  // guarded by the step's mutex where outputs of several positions may be delivered at once
    const uint32_t index;
    absl::InlinedVector<Position, 1> positions;
  };

  void AddPosition(uint32_t index, const std::string& request_id, const StepShape& shape, const Tensors& tensors,
                   Row* row);
  // Takes one position's output.
  RowRun::Progress Collect(Row* row, uint32_t position, PositionOutput output);
  void Encode(Row* row, bool wanted, v1::StepResults* out);
  void EncodeAnswer(const RowPlan& plan, const SequenceSpec& spec, const RowResult& result, v1::StepResults* out) const;
  // Adds answers of rows that ran to those held, and takes what is to leave now, if anything.
  v1::StepResults Gather(v1::StepResults results, bool more_follow);
  void Send(v1::StepResults results);
  void SendToOtherSlices(const v1::StepResults& results);

  const uint64_t batch_id_;
  const uint32_t rows_;
  const Frame frame_;
  Batcher& batcher_;
  const std::shared_ptr<StepAnswers> answers_;
  std::vector<std::unique_ptr<Row>> running_;      // fixed once submitted
  std::vector<std::pair<Row*, uint32_t>> queued_;  // with the position, by the queued row's index
  v1::StepResults immediate_;
  v1::StepResults repeated_;
  // Of a step that comes in slices, by the row's index; each fixed once the row is submitted.
  struct Slices {
    Row* row = nullptr;            // if it runs
    v1::StepResults held;          // if it does not: what all slices get
    std::vector<RowSlice> others;  // slices other than 0
  };
  std::vector<Slices> slices_;

  std::atomic<uint32_t> refused_ = 0;
  absl::Mutex mutex_;
  // Answers that wait for those of other rows, and the rows whose answers have not been gathered.
  v1::StepResults held_ ABSL_GUARDED_BY(mutex_);
  uint64_t held_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t not_gathered_ ABSL_GUARDED_BY(mutex_) = 0;
  UnansweredRows unanswered_;
};

}  // namespace sortition::service
