// Runs of a step's rows on devices, for traces and the page of slow steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace sortition::service {

// The run of a step's rows in one batch. Its times are the clock's.
struct BatchRun {
  std::string_view device;  // its name, valid as long as the batcher
  uint32_t rows = 0;        // the step's rows in the batch
  absl::Time queued;        // the first of them joined the queue
  absl::Time started;       // the device got the batch
  absl::Time ended;         // the device had finished it
};

// The first runs of a step, and the number of the others. Thread-safe.
class BatchRuns {
 public:
  static constexpr size_t kMostRuns = 8;

  void Add(const BatchRun& run) {
    absl::MutexLock lock(&mutex_);
    if (runs_.size() < kMostRuns) {
      runs_.push_back(run);
    } else {
      ++left_out_;
    }
  }

  // Appends the runs to `*runs`. Returns the number of those that were left out.
  uint32_t AppendTo(std::vector<BatchRun>* runs) const {
    absl::MutexLock lock(&mutex_);
    runs->insert(runs->end(), runs_.begin(), runs_.end());
    return left_out_;
  }

 private:
  mutable absl::Mutex mutex_;
  absl::InlinedVector<BatchRun, 1> runs_ ABSL_GUARDED_BY(mutex_);
  uint32_t left_out_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace sortition::service
