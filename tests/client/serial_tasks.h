// A thread on which a fake connector makes its events.
#pragma once

#include <deque>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

namespace sortition::testing {

// Runs tasks one after the other on a separate thread. Thread-safe.
class SerialTasks {
 public:
  SerialTasks() : thread_([this] { Run(); }) {}
  // Runs every task posted before, then joins.
  ~SerialTasks() {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    thread_.join();
  }
  void Post(absl::AnyInvocable<void()> task) {
    absl::MutexLock lock(&mutex_);
    tasks_.push_back(std::move(task));
  }

 private:
  void Run() {
    const auto wanted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || !tasks_.empty(); };
    for (;;) {
      absl::AnyInvocable<void()> task;
      {
        absl::MutexLock lock(&mutex_, absl::Condition(&wanted));
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      std::move(task)();
    }
  }

  absl::Mutex mutex_;
  std::deque<absl::AnyInvocable<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace sortition::testing
