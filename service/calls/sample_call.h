// Calls of SamplingService.Sample on a server's queues: admission, authorization and bytes. service/stream/sample_run.h
// does the work.
#pragma once

#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "service/calls/call_queue.h"
#include "service/calls/stream_call.h"
#include "service/engine.h"
#include "service/log/log.h"
#include "service/net/authorization.h"
#include "service/refusal.h"

namespace sortition::server {

// Thread-safe. Outlives its calls; CallQueue::AwaitNoCalls waits for their end.
class SampleCalls {
 public:
  // Counts calls that run together with streams. Thread-safe.
  class Host {
   public:
    virtual ~Host() = default;
    // Returns why a call is not served, or nothing: then it counts until OnAnswered, and its answer until OnAnswerRead.
    virtual std::optional<service::Refusal> Admit() = 0;
    virtual void OnAnswered() = 0;
    virtual void OnAnswerRead() = 0;
  };

  // Only the budget is owned. The rest outlives the calls.
  struct Surroundings {
    Host* host;
    StreamCall::AsyncService* service;
    const Authorization* authorization;
    service::Engine* engine;
    Log* log;
    const LoadReports* load_reports;  // null if off
    std::shared_ptr<ReceiveBudget> budget;
  };

  explicit SampleCalls(const Surroundings& surroundings) : surroundings_(surroundings) {}

  // Begins to wait on `queue` for calls. The server has been started.
  void Start(CallQueue* queue);
  // Ends calls whose answer has not been read for limits.stalled_write, and refuses those whose messages are given up.
  // Called every few milliseconds.
  void Tick(absl::Time now);

 private:
  class Call;

  // Returns false if Tick refuses the call.
  bool EndReading(Call* call);

  const Surroundings surroundings_;
  UnreadAnswers unread_;
  absl::Mutex mutex_;
  absl::flat_hash_set<Call*> reading_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sortition::server
