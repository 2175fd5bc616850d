// A step between its arrival and its last answer: what its rows need (step_in_flight.cc), and how their results become
// messages (step_answers.cc).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/synchronization/mutex.h"
#include "service/batch/batcher.h"
#include "service/memory/mask_memory.h"
#include "service/request/payload_view.h"
#include "service/request/step_request.h"
#include "service/sequence/checkpoint.h"
#include "service/sequence/sequence_table.h"
#include "service/stream/frame.h"
#include "service/stream/row_run.h"
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
  // What the worker sends back with the next step of a sequence whose sampler keeps a state.
  virtual std::string SealCheckpoint(const std::string& request_id, const SequenceSpec& spec,
                                     const Checkpoint& checkpoint) const = 0;
  // False once nobody waits for answers any more: results are dropped and sequences keep the state before the step.
  virtual bool Wanted() const = 0;
};

// Owned by a shared_ptr, which it gives to the batcher again for rows that run one after the other.
class StepInFlight : public PendingStep, public std::enable_shared_from_this<StepInFlight> {
 public:
  // `rows` is the number of rows of the step message. `sequences` and `batcher` are not owned and outlive the step.
  StepInFlight(uint64_t batch_id, uint32_t rows, Frame frame, SequenceTable* sequences, Batcher* batcher,
               std::shared_ptr<StepAnswers> answers);

  // Tensors of the step's message.
  struct Tensors {
    const PayloadView& logits;
    const std::optional<PayloadView>& masks;
    const std::optional<PayloadView>& drafts;
  };

  // Building, before the step is submitted; by one thread. A row is either added to run or answered at once.
  // `masks` are the packed masks of request.plan.masks, empty where there is none. Of a slice no logits are taken.
  void AddRow(uint32_t index, std::string request_id, const StreamSequence& sequence, StepRowRequest request,
              std::optional<StepGrant> grant, std::vector<RowMaskBits> masks, const StepShape& shape,
              const Tensors& tensors);
  void AnswerNow(uint32_t index, const StepRowRequest& request, const StreamSequence& sequence,
                 const StepAnswer& answer);
  void RefuseNow(uint32_t index, uint64_t step_id, const Refusal& refusal);

  // Of a step that came in slices, all of them by their first token: gives the rows their logits, and the other slices'
  // streams the answers. Before TakeRows. A refusal concerns the whole step.
  std::optional<Refusal> SetShards(const std::vector<StepShard>& shards);
  // The rows to submit, referring to memory of this object; others may follow while these are delivered.
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
  // What a device is given for one position of a row.
  struct Position {
    std::vector<std::byte> draft;  // probabilities that were copied
    QueuedRow queued;
  };
  struct Row {
    Row(uint32_t row, const StreamSequence& its, RowRun its_run, std::optional<StepGrant> granted)
        : index(row), sequence(its), grant(std::move(granted)), run(std::move(its_run)) {}

    const uint32_t index;
    const StreamSequence sequence;
    const std::optional<StepGrant> grant;  // if the sequence keeps state
    absl::InlinedVector<Position, 1> positions;
    RowRun run;  // guarded by the step's mutex where results of several positions may be delivered at once
  };

  void AddPosition(uint32_t index, const std::string& request_id, const StepShape& shape, const Tensors& tensors,
                   Row* row);
  // Takes one position's result; true once the row has all.
  bool Collect(Row* row, uint32_t position, PositionResult result);
  // The same of a row that runs in order: true once no position follows, else the next one is added to `*following`.
  // None follows where nobody waits for the answer any more.
  bool CollectInOrder(Row* row, uint32_t position, PositionResult result, bool wanted,
                      std::vector<QueuedRow>* following) const;
  void Encode(Row* row, v1::StepResults* out);
  void EncodeAnswer(uint32_t index, const StepRowRequest& request, const SequenceSpec& spec, const StepOutcome& outcome,
                    std::optional<uint64_t> history_hash, v1::StepResults* out) const;
  void Send(v1::StepResults results);

  const uint64_t batch_id_;
  const uint32_t rows_;
  const Frame frame_;
  SequenceTable& sequences_;
  Batcher& batcher_;
  const std::shared_ptr<StepAnswers> answers_;
  std::vector<std::unique_ptr<Row>> running_;      // fixed once submitted
  std::vector<std::pair<Row*, uint32_t>> queued_;  // with the position, by the queued row's index
  v1::StepResults immediate_;
  std::vector<StepShard> followers_;  // slices other than 0; fixed once submitted

  std::atomic<uint32_t> refused_ = 0;
  absl::Mutex mutex_;
  uint32_t unanswered_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sortition::service
