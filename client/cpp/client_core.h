// The core of a client: the state machine under one lock, and the thread that runs its timers and callbacks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/cpp/state_rows.h"
#include "client/cpp/stream_state.h"
#include "client/cpp/transport/transport.h"
#include "client/cpp/wake_queue.h"
#include "sortition/batch.h"
#include "sortition/client.h"
#include "sortition/options.h"

namespace sortition::client {

// Thread-safe. Callbacks never run under its lock, nor on a caller's thread, except within Poll. Locks are taken in
// this order: mutex_, a record's mutex, a transport's, the WakeQueue's.
class ClientCore : public StreamEvents, public std::enable_shared_from_this<ClientCore> {
 public:
  // `options` have been checked. `connector` as in StreamState::Environment.
  ClientCore(ClientOptions options, std::shared_ptr<Connector> connector);
  ~ClientCore() override;

  // Blocks and fails as Client::Connect.
  absl::Status WaitUntilUsable();
  absl::StatusOr<std::unique_ptr<Sequence>> Open(SequenceOptions options);
  absl::StatusOr<std::unique_ptr<Sequence>> Fork(const Sequence& parent, SequenceOptions options,
                                                 std::optional<uint32_t> position);
  // Starts the step of a batch that has been checked. `polls`: the caller calls Poll next.
  absl::Status Submit(const Batch& batch, const StepOptions& options, PendingBatch::Done done, bool polls);
  void Close(const std::shared_ptr<SequenceRecord>& record);
  // Ends everything and blocks until the last callback has returned. To be called once, before destruction.
  void Shutdown();

  const ClientOptions& options() const { return options_; }
  bool in_process() const;
  // Polls for the stream in use until `done` is true or nothing is to be gained by it.
  void Poll(absl::FunctionRef<bool()> done);
  // Returns the shared memory of the stream in use; null if there is none.
  std::shared_ptr<SharedMemory> memory() const;
  // Returns the shared memories of the stream in use and of its successor.
  std::vector<std::shared_ptr<SharedMemory>> memories() const;
  absl::StatusOr<std::shared_ptr<const Client::DeviceMemory>> ShareDevice(std::shared_ptr<const DeviceRows> rows);
  // As Client::DeviceMemory::sharing. Returns the number of first tokens in the compact form of such rows; 0: they
  // travel whole.
  uint32_t CompactCountOf(uint32_t vocabulary_size, uint32_t element_bytes) const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status SharingOf(const DeviceRows& rows) const;
  void Forget(const DeviceRows& rows);
  void OnMemory(SharedMemory* memory, const RetryBudget& budget) override;
  TransportInUse transport_in_use() const;
  std::vector<std::string> ignored_fields() const;

  void OnResponse(uint64_t stream, const v1::StreamResponse& response) override;
  void OnLocalOpened(uint64_t stream, uint64_t epoch, LocalOpenResult result) override;
  void OnLocalResults(uint64_t stream, uint64_t batch_id, std::vector<LocalResult> results) override;
  void OnEnded(uint64_t stream, absl::Status status) override;

 private:
  absl::StatusOr<std::unique_ptr<Sequence>> OpenRecord(std::shared_ptr<SequenceRecord> record);
  // Changes the state, sends the resulting messages, and delivers ended batches: on this thread if it is the client's,
  // otherwise on the client's thread. Pollers are callers that call Poll next.
  enum class Thread { kOurs, kCallers, kPollers };
  void Update(Thread thread, absl::FunctionRef<void(StreamState&, absl::Time)> change) ABSL_LOCKS_EXCLUDED(mutex_);
  // Rows of a batch that travel in compact form, with `count` first tokens.
  struct CompactRows {
    uint32_t count = 0;
    std::vector<PendingRow*> here;
    std::vector<RowOnDevice> on_devices;
  };
  CompactRows CompactRowsOf(PendingBatch* batch) const ABSL_LOCKS_EXCLUDED(mutex_);
  void FinishBatch(PendingBatch* batch);
  void CountFinished();
  void Run();

  const ClientOptions options_;
  const std::shared_ptr<WakeQueue> wake_queue_ = std::make_shared<WakeQueue>();
  mutable absl::Mutex mutex_;
  StreamState state_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<std::string> request_ids_ ABSL_GUARDED_BY(mutex_);
  uint64_t unfinished_ ABSL_GUARDED_BY(mutex_) = 0;  // batches, and opens that callers wait for
  std::thread thread_;
};

}  // namespace sortition::client
