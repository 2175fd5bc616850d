// An observer that counts its events.
#pragma once

#include <map>
#include <numeric>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "service/observer.h"

namespace sortition::testing {

// Thread-safe.
class CountingObserver : public service::NullObserver {
 public:
  void StepReceived(uint32_t rows, uint64_t) override {
    absl::MutexLock lock(&mutex_);
    totals_.steps += 1;
    totals_.rows += rows;
  }
  void StepAnswered(absl::Duration latency) override {
    absl::MutexLock lock(&mutex_);
    latencies_.push_back(latency);
  }
  void StepReady(absl::Duration waited) override {
    absl::MutexLock lock(&mutex_);
    ready_waits_.push_back(waited);
  }
  void CompactRows(const service::CompactRowCounts& counts) override {
    absl::MutexLock lock(&mutex_);
    const uint32_t required = std::accumulate(counts.required.begin(), counts.required.end(), 0u);
    totals_.compact_rows += counts.decided + required;
    totals_.rows_required += required;
  }
  void Count(service::Counter counter, uint64_t count) override {
    absl::MutexLock lock(&mutex_);
    counts_[counter] += count;
    if (counter == service::Counter::kTokens) totals_.tokens += count;
  }
  void Refused(service::Reason reason, std::string_view, uint32_t count) override {
    absl::MutexLock lock(&mutex_);
    totals_.errors += count;
    if (service::IsFailure(reason)) totals_.failures += count;
    refused_[reason] += count;
  }
  void BatchDone(std::string_view, uint32_t, absl::Duration queue_wait, absl::Duration) override {
    absl::MutexLock lock(&mutex_);
    totals_.batches += 1;
    queue_waits_.push_back(queue_wait);
  }

  Totals totals() const override {
    absl::MutexLock lock(&mutex_);
    return totals_;
  }
  uint32_t refused(service::Reason reason) const {
    absl::MutexLock lock(&mutex_);
    const auto it = refused_.find(reason);
    return it == refused_.end() ? 0 : it->second;
  }
  std::vector<absl::Duration> latencies() const {
    absl::MutexLock lock(&mutex_);
    return latencies_;
  }
  std::vector<absl::Duration> ready_waits() const {
    absl::MutexLock lock(&mutex_);
    return ready_waits_;
  }
  std::vector<absl::Duration> queue_waits() const {
    absl::MutexLock lock(&mutex_);
    return queue_waits_;
  }
  uint64_t count(service::Counter counter) const {
    absl::MutexLock lock(&mutex_);
    const auto it = counts_.find(counter);
    return it == counts_.end() ? 0 : it->second;
  }

 private:
  mutable absl::Mutex mutex_;
  Totals totals_ ABSL_GUARDED_BY(mutex_);
  std::map<service::Reason, uint32_t> refused_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::Duration> latencies_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::Duration> ready_waits_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::Duration> queue_waits_ ABSL_GUARDED_BY(mutex_);
  std::map<service::Counter, uint64_t> counts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sortition::testing
