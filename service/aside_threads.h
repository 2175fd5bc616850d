// Threads for long tasks besides the devices' work and the streams': re-checks, reads of a device's memory, and the
// destruction of large states.
#pragma once

#include <cstdint>
#include <deque>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

namespace sortition::service {

// Thread-safe. The queue is bounded by the batches in flight, since a batch that is being checked still counts as one
// on its device, and by the states that streams build meanwhile, which takes longer than to destroy them.
class AsideThreads {
 public:
  explicit AsideThreads(uint32_t threads);
  // Runs all tasks that were given before, then joins the threads.
  ~AsideThreads();

  void Run(absl::AnyInvocable<void()> task) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Work() ABSL_LOCKS_EXCLUDED(mutex_);
  bool TaskOrStop() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || !tasks_.empty(); }

  absl::Mutex mutex_;
  std::deque<absl::AnyInvocable<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace sortition::service
