// What wakes the client's own thread: a time that has come, or a batch whose memory is free.
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

// Thread-safe. Its lock is taken last of all, so Push may be called wherever a transport lets go of bytes. Times are a
// service::SteadyClock's; a standard library's, as Abseil's timed waits follow the machine's clock when that is set.
class WakeQueue {
 public:
  struct Event {
    std::vector<std::shared_ptr<PendingBatch>> batches;
    bool stopped = false;
  };

  void SetTime(absl::Time time) {
    const std::lock_guard lock(mutex_);
    // Who sleeps until an earlier time looks again by then; steps with later deadlines than the last one wake nobody.
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

  // Blocks until there is something to do. For one thread.
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
  absl::Time sleeping_until_ = absl::InfinitePast();  // if somebody sleeps
  std::vector<std::shared_ptr<PendingBatch>> batches_;
  bool stopped_ = false;
};

}  // namespace sortition::client
