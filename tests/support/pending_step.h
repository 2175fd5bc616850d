// A step that records its outputs.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "service/batch/batcher.h"

namespace sortition::service {

// Thread-safe. Fails the test if a row is delivered twice.
class RecordingStep : public PendingStep {
 public:
  void Deliver(std::span<const QueuedOutput> outputs) override {
    absl::MutexLock lock(&mutex_);
    ++calls_;
    for (const QueuedOutput& output : outputs) {
      const auto kept = output.output != nullptr ? Kept(std::move(*output.output)) : Kept(*output.refusal);
      EXPECT_TRUE(outputs_.try_emplace(output.index, kept).second) << "row " << output.index << " was delivered twice";
    }
  }

  size_t delivered() const {
    absl::MutexLock lock(&mutex_);
    return outputs_.size();
  }
  uint32_t calls() const {
    absl::MutexLock lock(&mutex_);
    return calls_;
  }
  // Returns the token of an answered row; fails the test if it was not answered.
  uint32_t Token(uint32_t index) const {
    absl::MutexLock lock(&mutex_);
    const auto it = outputs_.find(index);
    if (it == outputs_.end() || !std::holds_alternative<kernels::RowOutput>(it->second)) {
      ADD_FAILURE() << "row " << index << " was not answered";
      return 0;
    }
    return std::get<kernels::RowOutput>(it->second).token;
  }
  // Returns the refusal of a row; fails the test if it was not refused.
  Refusal WhyNot(uint32_t index) const {
    absl::MutexLock lock(&mutex_);
    const auto it = outputs_.find(index);
    if (it == outputs_.end() || !std::holds_alternative<Refusal>(it->second)) {
      ADD_FAILURE() << "row " << index << " was not refused";
      return Refusal{Reason::kMalformedMessage, "", "", ""};
    }
    return std::get<Refusal>(it->second);
  }
  bool WasRefused(uint32_t index) const {
    absl::MutexLock lock(&mutex_);
    const auto it = outputs_.find(index);
    return it != outputs_.end() && std::holds_alternative<Refusal>(it->second);
  }

 private:
  using Kept = std::variant<kernels::RowOutput, Refusal>;
  mutable absl::Mutex mutex_;
  std::map<uint32_t, Kept> outputs_ ABSL_GUARDED_BY(mutex_);
  uint32_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Returns `count` rows with indexes 0, 1, ... Their positions, from `first` upwards, tell them apart.
inline std::vector<QueuedRow> RowsAt(uint32_t first, uint32_t count) {
  static const kernels::RowParameters kPlain;
  std::vector<QueuedRow> rows(count);
  for (uint32_t i = 0; i < count; ++i) {
    rows[i].index = i;
    rows[i].row.request.parameters = &kPlain;
    rows[i].row.request.noise.position = first + i;
  }
  return rows;
}

// Output of a fake device for such a row: its position as the token.
inline kernels::RowOutput PositionAsToken(const devices::DeviceRow& row) {
  kernels::RowOutput answer;
  answer.token = row.request.noise.position;
  return answer;
}

}  // namespace sortition::service
