// A device that does nothing until a test lets it, so that a test decides which batches are in flight.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "devices/device.h"

namespace sortition::server {

// Thread-safe. Starts released: batches go straight to the inner device.
class HeldDevice final : public devices::Device {
 public:
  explicit HeldDevice(std::unique_ptr<devices::Device> inner) : inner_(std::move(inner)) {}

  const devices::DeviceDescription& description() const override { return inner_->description(); }

  void Submit(std::vector<devices::DeviceRow> rows, Done done) override {
    {
      absl::MutexLock lock(&mutex_);
      thread_waits_ = holds_threads_;
      mutex_.Await(absl::Condition(
          +[](bool* holds) { return !*holds; }, &holds_threads_));
      if (held_) {
        batches_.push_back({std::move(rows), std::move(done)});
        return;
      }
    }
    inner_->Submit(std::move(rows), std::move(done));
  }

  absl::StatusOr<std::shared_ptr<const devices::ImportedMemory>> Import(const devices::MemoryHandle& handle) override {
    return inner_->Import(handle);
  }

  // Keeps later batches.
  void Hold() {
    absl::MutexLock lock(&mutex_);
    held_ = true;
  }

  // Keeps the threads that bring batches from now on: those of streams, in the middle of a message.
  void HoldThreads() {
    absl::MutexLock lock(&mutex_);
    holds_threads_ = true;
  }

  // Blocks until a thread is being kept.
  void AwaitThread() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&thread_waits_));
  }

  // Blocks until a batch is being kept.
  void AwaitBatch() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &HeldDevice::HasBatch));
  }

  // Passes on the kept batches and threads, and keeps no more.
  void Release() {
    std::vector<Batch> batches;
    {
      absl::MutexLock lock(&mutex_);
      held_ = false;
      holds_threads_ = false;
      batches.swap(batches_);
    }
    for (Batch& batch : batches) inner_->Submit(std::move(batch.rows), std::move(batch.done));
  }

 private:
  struct Batch {
    std::vector<devices::DeviceRow> rows;
    Done done;
  };
  bool HasBatch() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !batches_.empty(); }

  const std::unique_ptr<devices::Device> inner_;
  absl::Mutex mutex_;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  bool holds_threads_ ABSL_GUARDED_BY(mutex_) = false;
  bool thread_waits_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Batch> batches_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sortition::server
