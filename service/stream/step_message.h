// A step message between its arrival and its last answer: its tensors where they lie, and the way of its answers.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "service/batch/batcher.h"
#include "service/engine.h"
#include "service/event_log.h"
#include "service/refusal.h"
#include "service/stream/stream_context.h"
#include "service/text/sequence_spec.h"
#include "service/wire/frame.h"
#include "service/wire/payload_view.h"
#include "service/wire/region_payloads.h"
#include "service/wire/step_answers.h"
#include "service/wire/step_request.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// Takes the results of rows. Thread-safe.
class ResultSink {
 public:
  virtual ~ResultSink() = default;
  // Answers rows of a step message, which the answers number as the message does.
  virtual void Answer(StepAnswers answers) = 0;
};

// Built by one thread; thread-safe afterwards. Each row is answered once.
class StepMessage final : public ResultSink {
 public:
  // `engine` is not owned and outlives the message. `region` are the payloads of the regions that the message names.
  StepMessage(Engine* engine, std::shared_ptr<StreamContext> stream, Frame frame, RegionPayloads region,
              absl::Time arrived);
  ~StepMessage() override;

  // Called before any function that needs the shape.
  void SetShape(StepShape shape);

  uint64_t batch_id() const { return step().batch_id(); }
  uint32_t rows() const { return static_cast<uint32_t>(step().rows_size()); }
  const v1::Step& step() const { return frame_.message.step(); }
  const v1::StepRow& row(uint32_t index) const { return step().rows(static_cast<int>(index)); }
  const std::vector<Payload>& payloads() const { return payloads_; }
  // Notes the options of a row, if the step is traced. Called while the message is built.
  void NoteOptions(const SequenceSpec& spec);
  // Charges the stream's window for what the rows' answers may list and for copies out of regions, beside the message's
  // own bytes. Called before the row is answered. Thread-safe.
  void ChargeLists(uint64_t bytes);
  // Bytes that DraftRow copies for this number of rows in a region.
  uint64_t CopiedDrafts(uint64_t rows) const {
    return drafts_ && drafts_->may_change() ? rows * shape_.draft_stride : 0;
  }
  // Returns why row `index` is refused for a field that its encoding sets twice; null if none is.
  const Refusal* FindSetTwice(uint32_t index) const;
  // Returns the refusal of row `index` for a field that this server does not know.
  std::optional<Refusal> FindUnknownInRow(uint32_t index) const;
  uint64_t bytes() const { return bytes_; }
  // Bytes of its payloads in shared memory, and of all that the worker has sent.
  uint64_t shared_bytes() const { return shared_bytes_; }
  uint64_t sent_bytes() const { return frame_.bytes + shared_bytes_; }
  absl::Time arrived() const { return arrived_; }
  StreamContext& stream() const { return *stream_; }
  // Returns the owner of the checkpoints of row `index`, without its identity.
  CheckpointOwner OwnerOf(uint32_t index) const { return stream_->OwnerOf(row(index).request_id()); }

  const StepShape& shape() const { return shape_; }
  const PayloadView& logits() const { return *logits_; }  // of whole rows
  const PayloadView& pairs() const { return *pairs_; }    // of compact rows
  const std::optional<PayloadView>& masks() const { return masks_; }
  // Returns row `row` of the draft probabilities, which lives as long as the message. One that came in pieces or lies
  // in a region is copied once, however many rows name it.
  const std::byte* DraftRow(uint32_t row) const;

  // Answers rows in messages of bounded size. With the last row's answer the message leaves the stream's window.
  void Answer(StepAnswers answers) override;
  // Refuses the message as a whole. No row of it has been answered.
  void Refuse(const Refusal& refusal);

  // Adds a step that runs rows of this message, for Cancel to find.
  void Attach(const std::shared_ptr<PendingStep>& step);
  // Rows that have not started yet are answered with STEP_CANCELLED once the batcher looks at them.
  void Cancel();

 private:
  void Count(const std::vector<AnswerNote>& notes);
  // Sends a message in which the answers of `rows` rows end.
  void Send(v1::StepResults* results, uint32_t rows);
  // The other shards of a row are answered with the same tokens, which count once.
  bool is_counted() const { return !shape_.shard || shape_.shard->index == 0; }
  void Finish();
  // Tells the event log of the step, with its times since its arrival.
  void Note(NotedStep noted);

  Engine& engine_;
  const std::shared_ptr<StreamContext> stream_;
  Frame frame_;                    // its payloads are payloads_
  std::vector<Payload> payloads_;  // the frame's, then regions'
  const uint64_t bytes_;
  uint64_t shared_bytes_ = 0;
  std::atomic<uint64_t> list_bytes_ = 0;  // of ChargeLists
  const absl::Time arrived_;
  StepShape shape_;
  std::optional<PayloadView> logits_;  // these refer to payloads_
  std::optional<PayloadView> pairs_;
  std::optional<PayloadView> masks_;
  std::optional<PayloadView> drafts_;
  std::optional<TracedOptions> options_;  // the first row's; `options_differ_`: another row has others
  bool options_differ_ = false;
  std::atomic<uint32_t> unanswered_;      // rows
  std::atomic<uint32_t> refused_ = 0;     // rows
  std::atomic<Reason> refused_for_ = {};  // one of them

  mutable absl::Mutex mutex_;
  // Copies of draft rows, by their number.
  mutable absl::flat_hash_map<uint32_t, std::vector<std::byte>> copied_drafts_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  absl::InlinedVector<std::weak_ptr<PendingStep>, 1> steps_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sortition::service
