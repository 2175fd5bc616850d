// The window of a stream: its unanswered rows and bytes, and the most with which it is still read.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "service/limits.h"

namespace sortition::service {

// Thread-safe.
class StreamWindow {
 public:
  explicit StreamWindow(const Limits& limits)
      : max_bytes_(limits.stream_unanswered_bytes), max_rows_(limits.stream_unanswered_rows) {}

  // A step is charged when it arrives; its credits return the charge.
  void Charge(uint32_t rows, uint64_t bytes) {
    absl::MutexLock lock(&mutex_);
    rows_ += rows;
    bytes_ += bytes;
  }
  void GiveBack(uint32_t rows, uint64_t bytes) {
    absl::MutexLock lock(&mutex_);
    rows_ -= rows;
    bytes_ -= bytes;
  }

  // False while the worker has more unanswered than it may.
  bool WantsFrames() const {
    absl::MutexLock lock(&mutex_);
    return rows_ < max_rows_ && bytes_ < max_bytes_;
  }
  // True if every step is answered and every answer has left.
  bool Idle() const {
    absl::MutexLock lock(&mutex_);
    return rows_ == 0 && bytes_ == 0;
  }

 private:
  const uint64_t max_bytes_;
  const uint64_t max_rows_;
  mutable absl::Mutex mutex_;
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t rows_ ABSL_GUARDED_BY(mutex_) = 0;
};

// A part of a window's charge. The destructor returns it, on any thread, also after the stream's end.
class Credit {
 public:
  Credit() = default;
  Credit(std::shared_ptr<StreamWindow> window, uint32_t rows, uint64_t bytes)
      : window_(std::move(window)), rows_(rows), bytes_(bytes) {}
  Credit(Credit&& other) = default;
  Credit& operator=(Credit&& other) = delete;
  ~Credit() {
    if (window_ != nullptr) window_->GiveBack(rows_, bytes_);
  }
  uint64_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<StreamWindow> window_;
  uint32_t rows_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace sortition::service
