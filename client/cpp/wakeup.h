// What wakes the client's own thread: a time that has come, or a batch whose memory is free.
#pragma once

#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cpp/pending.h"

namespace sortition::client {

// Thread-safe. Its lock is taken last of all, so Push may be called wherever a transport lets go of bytes.
class Wakeup {
 public:
  struct Event {
    std::vector<std::shared_ptr<PendingBatch>> batches;
    bool stopped = false;
  };

  void SetTime(absl::Time time) {
    absl::MutexLock lock(&mutex_);
    // Who sleeps until an earlier time looks again by then; steps with later deadlines than the last one wake nobody.
    if (time < sleeping_until_) changed_.Signal();
    time_ = time;
  }
  void Push(std::shared_ptr<PendingBatch> batch) {
    absl::MutexLock lock(&mutex_);
    batches_.push_back(std::move(batch));
    changed_.Signal();
  }
  void Stop() {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    changed_.Signal();
  }

  // Blocks until there is something to do. For one thread.
  Event Wait() {
    absl::MutexLock lock(&mutex_);
    while (!stopped_ && batches_.empty() && absl::Now() < time_) {
      sleeping_until_ = time_;
      changed_.WaitWithDeadline(&mutex_, time_);
    }
    sleeping_until_ = absl::InfinitePast();
    time_ = absl::InfiniteFuture();
    return Event{std::exchange(batches_, {}), stopped_};
  }

 private:
  absl::Mutex mutex_;
  absl::CondVar changed_;
  absl::Time time_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  absl::Time sleeping_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // if somebody sleeps
  std::vector<std::shared_ptr<PendingBatch>> batches_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace sortition::client
