// The client's side of the protocol as a state machine: it decides which messages are sent and when, and handles
// responses, lost streams and the passing of time.
//
// It has no sockets, threads or clock: messages leave through transports, events arrive through methods, and the time
// is an argument. Every submitted row gets exactly one result, and its sequence advances exactly once if the result is
// a token, even when streams break and messages are lost or repeated:
// - Results are matched by a batch id, which is used once, and by the row's step id. Results that match nothing are
//   late and are ignored.
// - Rows without a result on a stream that has ended are sent again with the same step ids, after their sequences were
//   opened again with a higher epoch. The service then repeats its result, or refuses rows that it cannot tell apart.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/cpp/links.h"
#include "client/cpp/pending.h"
#include "client/cpp/transport/device_rows.h"
#include "client/cpp/transport/transport.h"
#include "client/cpp/transport/wire_errors.h"
#include "client/local/local_sampler.h"
#include "sortition/options.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::client {

using Released = std::function<void(std::shared_ptr<PendingBatch>)>;

// Not thread-safe; its owner calls it under one lock.
class StreamState {
 public:
  struct Environment {
    std::shared_ptr<Connector> connector = nullptr;  // starts every stream; null: the options' connectors
    StreamEvents* events = nullptr;                  // not owned, outlives the state
    // Microseconds since 1970, so that it is above the epochs of an earlier client of the same worker session.
    uint64_t first_epoch = 0;
    uint64_t jitter_seed = 0;
    // Called when a transport releases the last bytes of a batch whose rows were done earlier. May run on any thread
    // and under any lock of a transport. All other batches end in TakeFinished.
    Released released;
  };

  // `options` outlives the state.
  StreamState(const ClientOptions& options, std::string worker_session, Environment environment);

  void Start(absl::Time now);
  void Open(std::unique_ptr<PendingOpen> open, absl::Time now);
  // Rows fail alone with STEP_IN_FLIGHT if their sequence has a step in flight.
  void Submit(std::shared_ptr<PendingBatch> batch, absl::Time now);
  // Lets rows of a submitted batch go that were stating. `is_last`: none is left; ends the use of the batch's memory
  // that its owner has counted for them.
  void OnStated(const std::shared_ptr<PendingBatch>& batch, std::span<PendingRow* const> rows, bool is_last,
                absl::Time now);
  // Registers memory of a device, in which rows may lie until Forget. False if some of its addresses are registered.
  bool Share(std::shared_ptr<const DeviceRows> rows) { return device_rows_.Add(std::move(rows)); }
  void Forget(const DeviceRows& rows) { device_rows_.Remove(rows); }
  const DeviceRowsTable& device_rows() const { return device_rows_; }
  // Returns the number of first tokens that rows of `row_bytes` bytes would list in compact form; 0: they travel whole.
  uint32_t CompactCount(uint64_t row_bytes, uint32_t element_bytes) const;
  // Closes a sequence that is not used any more: at once if the service has it on the current stream, or when its
  // pending open is answered. Otherwise the service forgets it by itself.
  void Close(SequenceRecord* record);
  void OnTime(absl::Time now) { Advance(now); }
  void OnResponse(uint64_t stream, const v1::StreamResponse& response, absl::Time now);
  void OnLocalOpened(uint64_t stream, uint64_t epoch, const LocalOpenResult& result, absl::Time now);
  void OnLocalResults(uint64_t stream, uint64_t batch_id, std::vector<LocalResult> results, absl::Time now);
  void OnEnded(uint64_t stream, const absl::Status& status, absl::Time now);
  // Ends every stream, and everything that is pending or is submitted later, with STEP_CANCELLED.
  void Stop();
  // As Links::TakeConnectors.
  std::vector<std::shared_ptr<Connector>> TakeConnectors() { return links_.TakeConnectors(); }

  // Returns the time by which OnTime has to be called.
  absl::Time next_event(absl::Time now) const;
  const Links& links() const { return links_; }
  bool usable() { return links_.usable() != nullptr; }

  // Batches and opens that have ended since the last call. The owner delivers their results without holding its lock.
  struct Finished {
    std::vector<std::shared_ptr<PendingBatch>> batches;
    std::vector<std::unique_ptr<PendingOpen>> opens;
  };
  Finished TakeFinished() { return std::exchange(finished_, {}); }

 private:
  // A Step message for which some results have not arrived.
  struct SentStep {
    static constexpr uint32_t kAnswered = UINT32_MAX;

    std::shared_ptr<PendingBatch> batch;
    std::vector<uint32_t> rows;  // indices in the batch, by the message's row index; kAnswered once the result is there
    uint32_t unanswered = 0;
    uint64_t message = 0;                       // its number on the stream
    std::weak_ptr<void> hold;                   // expired once the transport has released the rows' bytes
    std::vector<std::shared_ptr<void>> leases;  // held by copies in the memory shared with the server
    bool shares_memory = false;                 // the server may read memory of the caller or of a lease
  };
  // An OpenSequence that has not been answered.
  struct SentOpen {
    std::shared_ptr<SequenceRecord> record;
    bool with_history = false;
    bool fork = false;
    uint64_t history_version = 0;  // the sent history's
    uint64_t first_message = 0;    // its pieces' numbers on the stream
    uint64_t last_message = 0;
    uint64_t history_tokens = 0;  // in all of them
    std::string receipts;         // of the answer's parts that have come
  };

  void Advance(absl::Time now);
  void Expire(absl::Time now);
  void ForgetSent();
  void EndAll();

  bool HasRoomFor(SequenceRecord& record) const;
  bool EnsureOpen(Link* link, const std::shared_ptr<SequenceRecord>& record, absl::Time now);
  bool CanFork(const Link& link, SequenceRecord& record) const;
  void SendFork(Link* link, const std::shared_ptr<SequenceRecord>& record, absl::Time now);
  void SendOpen(Link* link, const std::shared_ptr<SequenceRecord>& record, bool with_history, absl::Time now);
  bool IsTooLarge(Link* link, const SequenceRecord& record, uint64_t bytes, absl::Time now);
  SentOpen* BeginOpen(const std::shared_ptr<SequenceRecord>& record, const Link& link);
  static std::optional<uint64_t> SeedOf(const SequenceRecord& record) ABSL_SHARED_LOCKS_REQUIRED(record.mutex);
  static v1::OpenSequence DescribeOpen(SequenceRecord* record);
  void OpenLocally(Link* link, const std::shared_ptr<SequenceRecord>& record, bool fork);
  void SendRows(Link* link, const std::shared_ptr<PendingBatch>& batch, absl::Time now);
  bool MayWaitForRows(const Link& link, const PendingBatch& batch) const;
  bool BringWithinReach(const SharedMemory* memory, PendingBatch* batch, PendingRow* row);
  void SendStep(Link* link, const std::shared_ptr<PendingBatch>& batch, std::vector<uint32_t> rows, absl::Time now);
  void StepLocally(Link* link, const std::shared_ptr<PendingBatch>& batch, std::vector<uint32_t> rows);
  std::shared_ptr<void> HoldRows(const std::shared_ptr<PendingBatch>& batch);
  void MarkSent(PendingBatch* batch, const std::vector<uint32_t>& rows);

  void OnOpened(const v1::SequenceOpened& opened, absl::Time now);
  void OnForked(const v1::SequenceForked& forked, absl::Time now);
  void OnOpenAnswered(uint64_t epoch, const LocalOpenResult& answer, absl::Time now);
  void OnOpenAccepted(const SentOpen& sent, const LocalOpened& state);
  void OnOpenRefused(const SentOpen& sent, const RowError& error, absl::Time now);
  void OnResults(uint64_t stream, const v1::StepResults& results, absl::Time now);
  absl::Status OnRowResult(SentStep* sent, const v1::RowResult& result, absl::Time now);
  void OnStepRefused(uint64_t batch_id, const RowError& error, absl::Time now);
  void OnRowRefused(PendingBatch* batch, PendingRow* row, const RowError& error, absl::Time now);
  void OnRowRequired(PendingBatch* batch, PendingRow* row, const v1::Error& error);
  void OnRejected(uint64_t stream, const v1::Rejected& rejected, absl::Time now);

  void Bind(SequenceRecord* record, bool bound);

  // For tensor-parallel ranks (stream_shards.cc).
  bool follows() const { return options_.shard && options_.shard->index != 0; }
  uint64_t NextStepId(SequenceRecord* record) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(record->mutex);
  void TakeUp(SequenceRecord* record);
  void BringAnswers(Link* link);
  void RememberAnswer(const PendingRow& row, const RowResult& result) ABSL_EXCLUSIVE_LOCKS_REQUIRED(row.record->mutex);
  void CloseShard(SequenceRecord* record);
  void SendOwedCloses(Link* link);
  bool LeavesSharedBytes(const SentStep& sent) const;
  Remedy RemedyOf(const RowError& error) const;

  void FinishRow(PendingBatch* batch, PendingRow* row, RowResult&& result);
  // Ends the pending opens of `record` (null: of all sequences) whose deadline is not after `until`.
  void FinishOpens(const SequenceRecord* record, const absl::Status& status, absl::Time until = absl::InfiniteFuture());
  void SendClose(Link* link, const SequenceRecord& record);
  // Ends the opens and waiting rows of the sequence whose deadline is not after `until`.
  void FailSequence(const SequenceRecord* record, const RowError& error, absl::Time until = absl::InfiniteFuture());
  void CollectDone();
  RowError DeadlinePassed() const;

  const ClientOptions& options_;
  const Released released_;
  const uint64_t first_epoch_;
  Links links_;
  DeviceRowsTable device_rows_;
  uint64_t next_epoch_;
  uint64_t next_batch_id_ = 1;
  bool stopped_ = false;
  std::vector<std::shared_ptr<PendingBatch>> batches_;
  std::vector<std::unique_ptr<PendingOpen>> opens_;
  // Messages on the current stream without a complete answer.
  absl::flat_hash_map<uint64_t, SentStep> sent_steps_;  // by batch id
  absl::flat_hash_map<uint64_t, SentOpen> sent_opens_;  // by epoch
  // The logs of sequences that are being closed, by epoch.
  absl::flat_hash_map<uint64_t, std::shared_ptr<ReceiptLog>> closing_receipts_;
  uint64_t unanswered_history_tokens_ = 0;  // sum over sent_opens_
  uint32_t bound_sequences_ = 0;
  std::vector<v1::CloseSequence> owed_closes_;  // closes of shards that no stream could take yet
  // Open sequences of a rank that have a last result, by request id, and the stream that got these results.
  absl::btree_map<std::string, std::shared_ptr<SequenceRecord>> answered_;
  uint64_t brought_on_ = 0;
  Finished finished_;
};

}  // namespace sortition::client
