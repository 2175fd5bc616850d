// All sampling streams of a gRPC server: bounds their number, and drains them.
#pragma once

#include <grpcpp/server_builder.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "service/calls/call_queue.h"
#include "service/calls/sample_call.h"
#include "service/calls/stream_call.h"
#include "service/engine.h"
#include "service/log/log.h"
#include "service/net/authorization.h"
#include "service/process/config.h"
#include "service/steady_cond_var.h"

namespace sortition::server {

// Life: constructed -> registered (Register) -> serving (Start) -> draining (Drain) -> ended (AwaitNoCalls). Start,
// Drain and AwaitNoCalls are called by one thread; the rest is thread-safe.
class StreamSet : private StreamCall::Host, private SampleCalls::Host {
 public:
  // `authorization`, `engine`, `log` and `load_reports`, which may be null, are not owned and outlive the set.
  StreamSet(const Config& config, Authorization* authorization, service::Engine* engine, Log* log,
            const LoadReports* load_reports);

  void Register(grpc::ServerBuilder* builder) { builder->RegisterService(&service_); }
  // Called when the server has been started. A stream stays on the queue that accepted it.
  void Start(const std::vector<std::unique_ptr<CallQueue>>& queues);
  // Runs StreamCall::Tick of each stream. Called every few milliseconds by one thread, which waits for no stream's.
  void Tick(absl::Time now);

  // Refuses new streams from now on; the next tick tells the open ones to end. Blocks until none is left, at most for
  // `grace` and a second for the last writes. Returns the number left.
  uint32_t Drain(absl::Duration grace);

  // Blocks until no call is left. Called after the server's shutdown, which ends calls.
  void AwaitNoCalls();

  // The number of open streams and of unary calls that run.
  uint32_t streams() const;

 private:
  void OnAccepted(StreamCall* call) override;
  void OnOver(StreamCall* call, bool admitted) override;
  std::optional<service::Refusal> Admit() override;
  void OnAnswered() override;
  void OnAnswerRead() override;

  void RequestCall(CallQueue* queue);
  bool Idle() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return streams_ == 0 && unread_answers_ == 0; }
  bool NoCalls() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return calls_.empty(); }

  service::Engine& engine_;
  StreamCall::AsyncService service_;
  const StreamCall::Surroundings surroundings_;
  SampleCalls samples_;

  mutable absl::Mutex mutex_;
  // The open calls, and on each queue one that waits for a client.
  absl::flat_hash_map<StreamCall*, std::shared_ptr<StreamCall>> calls_ ABSL_GUARDED_BY(mutex_);
  uint32_t streams_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t unread_answers_ ABSL_GUARDED_BY(mutex_) = 0;                // of unary calls
  service::SteadyCondVar ended_;                                       // when Idle becomes true
  std::optional<absl::Duration> drain_grace_ ABSL_GUARDED_BY(mutex_);  // set by Drain
};

}  // namespace sortition::server
