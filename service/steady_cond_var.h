// A condition variable whose timed waits follow the steady clock.
//
// Abseil's timed waits follow the machine's clock: they end early or late when somebody sets it.
#pragma once

#include <chrono>
#include <condition_variable>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "service/clock.h"

namespace sortition::service {

// Waits with an absl::Mutex, as absl::CondVar does. Thread-safe. Times are a SteadyClock's (service/clock.h).
class SteadyCondVar {
 public:
  // Wakes one waiting thread, or all. The caller may hold the mutex.
  void NotifyOne() { changed_.notify_one(); }
  void NotifyAll() { changed_.notify_all(); }

  // Releases `mutex`, blocks until a notification or until `end`, and locks it again. May return earlier.
  // InfiniteFuture waits for a notification alone.
  void WaitUntil(absl::Mutex* mutex, absl::Time end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Lockable lockable{mutex};
    if (end == absl::InfiniteFuture()) {
      changed_.wait(lockable);
    } else {
      changed_.wait_until(lockable,
                          std::chrono::steady_clock::time_point(absl::ToChronoNanoseconds(end - absl::UnixEpoch())));
    }
  }

  // Blocks until `done()`, which is called with `mutex` held, or until `most` has passed. Returns the last result of
  // `done()`. The thread that changes this result notifies.
  bool WaitFor(absl::Mutex* mutex, absl::Duration most, absl::FunctionRef<bool()> done)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const absl::Time end = SteadyClock().Now() + most;
    while (!done()) {
      if (SteadyClock().Now() >= end) return false;
      WaitUntil(mutex, end);
    }
    return true;
  }

 private:
  // The mutex under the names that the standard library calls.
  struct Lockable {
    absl::Mutex* mutex;
    void lock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex->Lock(); }
    void unlock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex->Unlock(); }
  };

  std::condition_variable_any changed_;
};

}  // namespace sortition::service
