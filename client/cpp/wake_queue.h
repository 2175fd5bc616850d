// The queue on which the client's thread sleeps: it wakes at a set time, or for a batch whose memory is free.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "client/cpp/pending.h"
#include "service/clock.h"

namespace sortition::client {

// Thread-safe. Its lock is the last one in the order of locks, so Push may be called wherever a transport releases
// bytes. Times are those of a service::SteadyClock.
class WakeQueue {
 public:
  struct Event {
    std::vector<std::shared_ptr<PendingBatch>> batches;
    bool stopped = false;
  };

  void SetTime(absl::Time time) {
    const std::lock_guard lock(mutex_);
    // A sleep until an earlier time needs no notification: the new time is read when it ends.
    if (time < sleeping_until_) changed_.notify_one();
    time_ = time;
  }
  void Push(std::shared_ptr<PendingBatch> batch) {
    const std::lock_guard lock(mutex_);
    batches_.push_back(std::move(batch));
    changed_.notify_one();
  }
  void Stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_one();
  }

  // Blocks until there is something to do. To be called by one thread.
  Event Wait() {
    std::unique_lock lock(mutex_);
    while (!stopped_ && batches_.empty() && service::SteadyClock().Now() < time_) {
      sleeping_until_ = time_;
      if (time_ == absl::InfiniteFuture()) {
        changed_.wait(lock);
      } else {
        changed_.wait_until(
            lock, std::chrono::steady_clock::time_point(absl::ToChronoNanoseconds(time_ - absl::UnixEpoch())));
      }
    }
    sleeping_until_ = absl::InfinitePast();
    time_ = absl::InfiniteFuture();
    return Event{std::exchange(batches_, {}), stopped_};
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  absl::Time time_ = absl::InfiniteFuture();
  absl::Time sleeping_until_ = absl::InfinitePast();  // end of the sleep in progress, if there is one
  std::vector<std::shared_ptr<PendingBatch>> batches_;
  bool stopped_ = false;
};

}  // namespace sortition::client
