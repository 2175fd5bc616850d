// The part of a stream that its session shares with its steps in flight, which may outlive the session: who the worker
// is, the way of messages to it, the window of unanswered rows and bytes, and the steps by their batch ids.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "service/batch/waiting_row.h"
#include "service/limits.h"
#include "service/refusal.h"
#include "service/shard/shard_table.h"
#include "service/stream/stream_window.h"
#include "service/text/checkpoint.h"
#include "service/wire/frame.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// The shell of a session: a gRPC stream, a ring or a test.
class SessionSink {
 public:
  virtual ~SessionSink() = default;
  // Queues one message to the worker. Thread-safe: called by the thread of Session::BeginFrame and by device threads.
  // Must not block and must not call back into the session. Destroys `credit` when the message has left, or can never
  // leave. `message` lives until Send returns.
  virtual void Send(const v1::StreamResponse& message, Credit credit) = 0;
  // Returns since when the oldest message that has not left waits for the worker to read; InfiniteFuture if none does,
  // or the shell does not know. Thread-safe.
  virtual absl::Time waiting_since() const { return absl::InfiniteFuture(); }
};

class StepMessage;

// Thread-safe, except `worker_session` and `pause`.
class StreamContext {
 public:
  StreamContext(const Limits& limits, std::string tenant_name, std::shared_ptr<SessionSink> sink);

  const std::string tenant;
  const QueueOwner owner;  // devices are shared out by it
  const std::shared_ptr<StreamWindow> window;
  std::string worker_session;  // set by the hello, before the first step; constant afterwards
  // Before the rest of a message, for the sake of other streams. For the session's thread.
  absl::Duration pause = absl::ZeroDuration();
  // Sets the pause between the reading of a long message and its work. Returns false, and sets none, for another.
  bool PauseAfterReading(const Frame& frame);

  ShardTable::Worker worker() const { return {tenant, worker_session}; }
  // Returns the owner of a checkpoint. The caller sets its identity, which is the spec's.
  CheckpointOwner OwnerOf(const std::string& request_id) const { return {tenant, worker_session, request_id}; }

  // Queues a message to the worker. `credit` is given back when it has left.
  void Send(const v1::StreamResponse& response, Credit credit = {}) { sink_->Send(response, std::move(credit)); }

  // As SessionSink::waiting_since.
  absl::Time waiting_since() const { return sink_->waiting_since(); }

  // Returns true while a step of this batch id waits for answers.
  bool IsUnanswered(uint64_t batch_id) const;
  // Adds a step that waits for answers, of an id that no other has. Refuses it if the stream is draining.
  std::optional<Refusal> Register(const std::shared_ptr<StepMessage>& step);
  void Unregister(uint64_t batch_id);
  // Returns null if no such step waits for answers.
  std::shared_ptr<StepMessage> Find(uint64_t batch_id) const;

  // Returns an empty message, with the memory of one that was given to Reuse if there is one.
  std::unique_ptr<v1::Step> NewStep();
  // Takes the message of a step that is over. It is freed if it may hold much memory. `bytes`: its size, `parts`: those
  // of its scan.
  void Reuse(std::unique_ptr<v1::Step> step, uint64_t bytes, uint64_t parts);

  // Returns true the first time.
  bool Drain();
  bool draining() const;
  static Refusal Draining();

  // Returns the steps that wait for answers, by batch id.
  std::vector<std::shared_ptr<StepMessage>> Steps() const;
  // Ends the stream: later results are dropped. Returns true the first time.
  bool Close();
  bool closed() const;

 private:
  const std::shared_ptr<SessionSink> sink_;

  mutable absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  absl::btree_map<uint64_t, std::weak_ptr<StepMessage>> steps_ ABSL_GUARDED_BY(mutex_);  // by batch_id
  std::vector<std::unique_ptr<v1::Step>> spare_ ABSL_GUARDED_BY(mutex_);                 // empty messages
};

}  // namespace sortition::service
