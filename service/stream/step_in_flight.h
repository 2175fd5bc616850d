// Whole rows of one step message on their way through the batcher, and from their kernels' outputs to answers.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "service/batch/batcher.h"
#include "service/observer.h"
#include "service/sequence/granted_row.h"
#include "service/stream/step_message.h"
#include "service/text/checkpoint.h"

namespace sortition::service {

// Runs a compact row and ends it: adds its result or refusal to `*out`. `key` seals checkpoints. Needs no device.
// Thread-safe.
void AnswerCompactRow(const StepMessage& message, const CheckpointKey& key, SequenceRow* run, Bill* bill,
                      StepAnswers* out);

// Counts the outcomes of `rows` compact rows, whose answers are among `now`.
CompactRowCounts CountCompact(const StepAnswers& now, size_t rows);

// Owned by a shared_ptr, which it gives to the batcher again for positions that run in turn. Its rows hold their
// sequences until they are delivered, or until AbortRows.
class StepInFlight final : public PendingStep, public std::enable_shared_from_this<StepInFlight> {
 public:
  // `batcher` and `key` are not owned and outlive the step. `sink` takes the answers. `early`: rows are answered as
  // they finish; otherwise together, as Gather says.
  StepInFlight(std::shared_ptr<StepMessage> message, std::shared_ptr<ResultSink> sink, Batcher* batcher,
               const CheckpointKey* key, bool early);

  // Building, by one thread. Sets the place of a position's logits: the segments of a device's row, and the owner of
  // their memory.
  using SetLogits = absl::FunctionRef<void(uint32_t position, devices::DeviceRow* row)>;
  void AddRow(GrantedRow&& row, SetLogits set_logits) { AddPositions(&rows_.emplace_back(std::move(row)), set_logits); }
  void AddRow(SequenceRow&& run, SetLogits set_logits) {
    AddPositions(&rows_.emplace_back(std::move(run)), set_logits);
  }
  // Returns the rows to submit, which refer to memory of this object. Positions that run in order follow later.
  std::vector<QueuedRow> TakeRows();
  // Gives up a step that was not submitted: the sequences are as they were.
  void AbortRows();
  // Does so, and refuses its rows.
  StepAnswers RefuseRows(const Refusal& refusal);

  void Deliver(std::span<const QueuedOutput> outputs) override;

 private:
  void AddPositions(SequenceRow* run, SetLogits set_logits);
  SequenceRow::Progress Take(SequenceRow* run, uint32_t position, const QueuedOutput& output);
  // Ends a row and adds its answer.
  void End(SequenceRow* run, bool wanted, StepAnswers* out);
  // Adds answers to those that are held. Returns the answers that leave now.
  StepAnswers Gather(StepAnswers answers, bool more_follow);

  const std::shared_ptr<StepMessage> message_;
  const std::shared_ptr<ResultSink> sink_;
  Batcher& batcher_;
  const CheckpointKey& key_;
  const bool early_;
  // Has room for all from the start; fixed once submitted. A row is guarded by the mutex where outputs of several
  // positions may be delivered at once.
  std::vector<SequenceRow> rows_;
  std::vector<QueuedRow> first_;                           // the rows' first positions, until TakeRows
  std::map<uint32_t, QueuedRow> following_;                // the others, by their index
  std::vector<std::pair<SequenceRow*, uint32_t>> queued_;  // with the position, by the queued row's index

  absl::Mutex mutex_;
  StepAnswers held_ ABSL_GUARDED_BY(mutex_);  // answers that wait for other rows' answers
  uint64_t held_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t not_gathered_ ABSL_GUARDED_BY(mutex_) = 0;  // rows
};

}  // namespace sortition::service
