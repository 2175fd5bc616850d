// Threads of a device whose driver blocks, one for each batch in flight.
#pragma once

#include <deque>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "devices/device.h"

namespace sortition::devices {

// Thread-safe, except Add, which must precede Submit.
class BatchThreads {
 public:
  // Samples a batch and blocks until it is done. The outputs of a batch that failed are dropped.
  using Run = absl::AnyInvocable<BatchOutput(const std::vector<DeviceRow>& rows)>;

  BatchThreads() = default;
  // Finishes every batch submitted before, calls its `done`, then joins the threads. A `done` that runs meanwhile must
  // not submit. Not called from within `done`.
  ~BatchThreads();
  BatchThreads(const BatchThreads&) = delete;
  BatchThreads& operator=(const BatchThreads&) = delete;

  // Adds a thread. It alone calls `run`, and destroys it when it ends.
  void Add(Run run);
  // As Device::Submit.
  void Submit(std::vector<DeviceRow> rows, Device::Done done) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Batch {
    std::vector<DeviceRow> rows;
    Device::Done done;  // null: the thread ends
  };

  Batch Take() ABSL_LOCKS_EXCLUDED(mutex_);
  bool BatchOrStop() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || !queue_.empty(); }

  absl::Mutex mutex_;
  std::deque<Batch> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace sortition::devices
