// The state behind a session, shared with its rows in flight. session.cc is its life and its dispatch,
// session_sequences.cc, session_steps.cc and session_shards.cc are what messages do.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "absl/synchronization/mutex.h"
#include "service/request/open_request.h"
#include "service/request/payload_view.h"
#include "service/request/step_request.h"
#include "service/request/strictness.h"
#include "service/row/row.h"
#include "service/sequence/history_index.h"
#include "service/sequence/sequence_snapshot.h"
#include "service/stream/partial_histories.h"
#include "service/stream/partial_snapshots.h"
#include "service/stream/session.h"
#include "service/stream/shard_table.h"
#include "service/stream/step_in_flight.h"
#include "service/stream/stream_memory.h"
#include "service/stream/uploaded_masks.h"

namespace sortition::service {

class Session::Impl : public StepAnswers, public SliceOwner, public std::enable_shared_from_this<Session::Impl> {
 public:
  // `stream_id` is unique in the process.
  Impl(Engine* engine, std::string tenant, std::shared_ptr<SessionSink> sink, uint64_t stream_id)
      : engine_(*engine),
        tenant_(std::move(tenant)),
        client_(engine->clients().Of(tenant_)),
        sink_(std::move(sink)),
        stream_id_(stream_id),
        memory_kept_(&engine->sequences(), tenant_),
        partial_histories_(engine->limits(), &engine->replays(), &memory_kept_),
        partial_snapshots_(engine->limits(), &memory_kept_),
        masks_(engine->limits(), &engine->masks()) {}

  void BeginFrame(Frame frame);
  void GoOn();
  void OnRejectedFrame(const Refusal& refusal);
  void OnSent(const SentRelease& release);
  bool WantsFrames() const;
  absl::Duration rest() const { return rest_; }
  bool Idle() const;
  void Drain(v1::DrainingNotice::Cause cause, absl::Duration grace);
  void Close();

  std::string SealCheckpoint(const std::string& request_id, const SequenceSpec& spec,
                             const Checkpoint& checkpoint) const override;
  void Answer(v1::StepResults results, const StepInFlight& step, bool last) override;
  bool Wanted() const override;
  void KeepAnswer(const v1::StepRow& asked, std::vector<v1::RowResult> results, uint32_t ranks) override;
  void AnswerSlices(v1::StepResults results, uint64_t bytes, bool last) override;

 private:
  // Of a history that is taken; what is longer is cut.
  static constexpr size_t kPieceTokens = 8192;
  // Longer than a piece takes, so that histories of one stream take less than half of a thread.
  static absl::Duration RestAfterPiece(const SequenceSpec& spec) {
    return HistoryIndex::Needed(spec.history) ? absl::Milliseconds(6) : absl::Milliseconds(1);
  }

  // Removes the unknown fields that the worker has asked to ignore, and reports those that occur for the first time.
  void DropIgnored(v1::StreamRequest* message);
  // What any message must keep to before its kind is looked at.
  std::optional<Refusal> CheckFrame(const Frame& frame) const;
  std::optional<Refusal> OnHello(const v1::Hello& hello);
  std::optional<Refusal> OnAttachMemory(const v1::AttachMemory& attach);
  std::optional<Refusal> OnOpen(const v1::OpenSequence& open);
  void EndOpenInHand();
  // Takes the next piece of the history in hand.
  std::optional<Refusal> TakePiece();
  std::optional<Refusal> OnFork(const v1::ForkSequence& fork);
  std::optional<Refusal> OnExport(const v1::ExportSequence& message);
  std::optional<Refusal> OnImport(const v1::ImportSequence& message);
  std::optional<Refusal> ImportAtOnce(const OpenRequest& request, const SequenceSnapshot& snapshot);
  std::optional<Refusal> BeginImport(OpenRequest request, SequenceSnapshot snapshot);
  // Takes the next piece of the state in hand.
  std::optional<Refusal> TakeImportPiece();
  std::optional<Refusal> FinishImport(const OpenRequest& request, std::unique_ptr<SequenceState> state);
  void EndImportInHand();
  std::optional<Refusal> OnUploadMask(const v1::UploadMask& upload, std::vector<Payload>* payloads);
  void OnStep(Frame frame);
  void OnSlices(StepShape shape, Frame frame, absl::Time now);
  // Starts the rows that these slices complete.
  void AddSlices(const std::shared_ptr<SliceMessage>& message, const std::vector<uint32_t>& rows, absl::Time deadline);
  void SubmitRows(std::vector<ShardTable::WholeRow> rows);
  void RefuseWaitingSlices();
  std::optional<Refusal> OnBringAnswer(v1::BringAnswer bring);
  void OnCancel(const v1::CancelStep& cancel);
  std::optional<Refusal> OnClose(const v1::CloseSequence& close);

  std::variant<const RowSequence*, Refusal> Find(const std::string& request_id, absl::string_view field) const;
  std::variant<v1::OpenedState, Refusal> Open(const OpenRequest& request, std::unique_ptr<SequenceState> state);
  std::optional<Refusal> FinishOpen(const OpenRequest& request, std::unique_ptr<SequenceState> state);
  void Forget(absl::flat_hash_map<std::string, RowSequence>::iterator sequence);
  void AnswerOpened(const OpenRequest& request, v1::OpenedState state);
  void AddStepRow(const v1::StepRow& row, int index, const StepShape& shape, const StepInFlight::Tensors& tensors,
                  RewriteAllowance* rewrites, StepInFlight* step);

  std::optional<Refusal> FindMasks(const StepShape& shape, const StepInFlight::Tensors& tensors, RowPlan* plan,
                                   std::vector<RowMaskBits>* masks) const;
  std::optional<Refusal> OpenCheckpoint(const v1::StepRow& row, const SequenceSpec& spec, RowPlan* plan) const;
  CheckpointOwner OwnerOf(const std::string& request_id, const SequenceSpec& spec) const;

  void Send(v1::StreamResponse response, SentRelease release = {});
  void Refuse(const v1::StreamRequest& message, const Refusal& refusal);
  void RefuseStep(uint64_t batch_id, const Refusal& refusal, uint32_t rows, uint64_t bytes);
  bool IsDraining() const;
  ReplayBudget::Owner replays_of() const { return {client_number_, stream_id_}; }
  ShardTable::Worker worker() const { return {tenant_, worker_session_}; }
  static Refusal Draining();
  static Refusal DuplicateRow(uint32_t index);
  std::optional<Refusal> RegisterStep(const std::shared_ptr<StepInFlight>& step);

  Engine& engine_;
  const std::string tenant_;
  const std::shared_ptr<ClientAccount> client_;
  const std::shared_ptr<SessionSink> sink_;
  const uint64_t stream_id_;
  const uint64_t client_number_ = absl::HashOf(tenant_);  // by which devices are shared out

  // Touched by BeginFrame's thread alone. The name of the worker session is set before the first step and then stays,
  // so that answers may read it.
  bool greeted_ = false;
  std::optional<IgnoredFields> ignored_fields_;  // if the worker has asked for it
  std::vector<std::string> ignored_in_hello_;
  uint64_t messages_ = 0;
  uint64_t frame_bytes_ = 0;                    // of the last message
  absl::Duration rest_ = absl::ZeroDuration();  // before the next call
  // An open whose history is taken in pieces; null if none is in hand.
  struct OpenInHand {
    v1::StreamRequest message;     // without the history's tokens
    OpenRequest request;           // its history is the piece that was taken last
    std::vector<uint32_t> tokens;  // that came with the message
    size_t taken = 0;
    uint64_t bytes = 0;  // as accounted
  };
  std::unique_ptr<OpenInHand> open_in_hand_;
  // The same of an import.
  struct ImportInHand {
    v1::StreamRequest message;  // without the state
    OpenRequest request;
    SequenceSnapshot snapshot;
    std::unique_ptr<SequenceState::Builder> builder;
    size_t taken = 0;
    uint64_t bytes = 0;  // as accounted, of the snapshot
    uint64_t builder_bytes = 0;
  };
  std::unique_ptr<ImportInHand> import_in_hand_;
  std::string worker_session_;
  StreamMemory memory_kept_;
  absl::flat_hash_map<std::string, RowSequence> sequences_;
  PartialHistories partial_histories_;
  PartialSnapshots partial_snapshots_;
  UploadedMasks masks_;
  std::shared_ptr<MemoryConnection> memory_;  // whose regions steps may name; null if none

  std::atomic<bool> shutting_down_ = false;

  mutable absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t unanswered_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t unanswered_rows_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<uint64_t, std::weak_ptr<StepInFlight>> steps_ ABSL_GUARDED_BY(mutex_);  // by batch_id
};

}  // namespace sortition::service
