// All sampling streams of a server: their threads, how many there may be, and their end.
#pragma once

#include <grpcpp/completion_queue.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "service/engine.h"
#include "service/server/authorization.h"
#include "service/server/config.h"
#include "service/server/log.h"
#include "service/server/received_message.h"
#include "service/server/sampling_call.h"

namespace sortition::server {

// Life: constructed -> registered (Register) -> serving (Start) -> draining (Drain) -> ended (End). Start, Drain and
// End are called by one thread; the rest is thread-safe.
class StreamSet : private SamplingCall::Host {
 public:
  // `authorization`, `engine` and `log` are not owned and outlive the set.
  StreamSet(const Config& config, Authorization* authorization, service::Engine* engine, Log* log);
  ~StreamSet() override;

  // Adds the service and the completion queues.
  void Register(grpc::ServerBuilder* builder);
  // The server has been started.
  void Start();

  // From now on streams are refused, and those that are open are told to end. Returns when none is left, or once
  // `grace` and a moment for the last writes have passed; how many were left.
  uint32_t Drain(absl::Duration grace);

  // Runs `shut_down`, which must end every call of the gRPC server, and then ends queues and threads.
  template <typename ShutDown>
  void End(ShutDown shut_down) {
    StopRequesting();
    shut_down();
    EndThreads();
  }

  // Open now.
  uint32_t streams() const;

 private:
  std::optional<service::Refusal> OnAccepted(SamplingCall* call) override;
  void OnOver(SamplingCall* call, bool admitted) override;

  void RequestCall(grpc::ServerCompletionQueue* queue);
  void StopRequesting();
  void EndThreads();
  void ServeQueue(grpc::ServerCompletionQueue* queue);
  void KeepTime();
  std::vector<std::shared_ptr<SamplingCall>> calls() const;
  bool NoCalls() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return calls_.empty(); }

  const Config config_;
  Authorization& authorization_;
  service::Engine& engine_;
  SamplingCall::AsyncService service_;
  const SamplingCall::Surroundings surroundings_;
  std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues_;
  std::vector<std::thread> threads_;
  std::thread timekeeper_;
  std::atomic<bool> stop_timekeeper_ = false;

  mutable absl::Mutex mutex_;
  // Open ones, and one that waits for a client on each queue.
  absl::flat_hash_map<SamplingCall*, std::shared_ptr<SamplingCall>> calls_ ABSL_GUARDED_BY(mutex_);
  uint32_t streams_ ABSL_GUARDED_BY(mutex_) = 0;
  bool requesting_ ABSL_GUARDED_BY(mutex_) = true;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace sortition::server
