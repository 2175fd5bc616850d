// The queue on which the client's thread sleeps: it wakes at a set time, or for a batch whose memory is free.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/cpp/pending.h"
#include "service/clock.h"
#include "service/steady_cond_var.h"

namespace sortition::client {

// Thread-safe. Its lock is the last in the order, so a transport may call Push wherever it releases bytes. Times are a
// service::SteadyClock's.
class WakeQueue {
 public:
  struct Event {
    std::vector<std::shared_ptr<PendingBatch>> batches;
    bool stopped = false;
  };

  void SetTime(absl::Time time) {
    absl::MutexLock lock(&mutex_);
    // A sleep until an earlier time needs no notification: the new time is read when it ends.
    if (time < sleeping_until_) changed_.NotifyOne();
    time_ = time;
  }
  void Push(std::shared_ptr<PendingBatch> batch) {
    absl::MutexLock lock(&mutex_);
    batches_.push_back(std::move(batch));
    changed_.NotifyOne();
  }
  void Stop() {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    changed_.NotifyOne();
  }

  // Blocks until there is something to do. To be called by one thread.
  Event Wait() {
    absl::MutexLock lock(&mutex_);
    while (!stopped_ && batches_.empty() && service::SteadyClock().Now() < time_) {
      sleeping_until_ = time_;
      changed_.WaitUntil(&mutex_, time_);
    }
    sleeping_until_ = absl::InfinitePast();
    time_ = absl::InfiniteFuture();
    return Event{std::exchange(batches_, {}), stopped_};
  }

 private:
  absl::Mutex mutex_;
  service::SteadyCondVar changed_;
  absl::Time time_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  absl::Time sleeping_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // end of the sleep in progress, if any
  std::vector<std::shared_ptr<PendingBatch>> batches_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace sortition::client
