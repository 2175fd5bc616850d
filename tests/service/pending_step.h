// A step that records what the batcher delivers to it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "service/batch/batcher.h"

namespace sortition::service {

// Thread-safe. Fails the test if a row comes twice.
class RecordingStep : public PendingStep {
 public:
  void Deliver(std::vector<RowOutcome> outcomes) override {
    absl::MutexLock lock(&mutex_);
    ++calls_;
    for (RowOutcome& outcome : outcomes) {
      EXPECT_TRUE(outcomes_.try_emplace(outcome.index, std::move(outcome.result)).second)
          << "row " << outcome.index << " was delivered twice";
    }
  }

  size_t delivered() const {
    absl::MutexLock lock(&mutex_);
    return outcomes_.size();
  }
  uint32_t calls() const {
    absl::MutexLock lock(&mutex_);
    return calls_;
  }
  // The token of a row that was answered; fails the test if it was not.
  uint32_t Token(uint32_t index) const {
    absl::MutexLock lock(&mutex_);
    const auto it = outcomes_.find(index);
    if (it == outcomes_.end() || !std::holds_alternative<kernels::RowOutput>(it->second)) {
      ADD_FAILURE() << "row " << index << " was not answered";
      return 0;
    }
    return std::get<kernels::RowOutput>(it->second).token;
  }
  // Why a row was refused; fails the test if it was not.
  Refusal WhyNot(uint32_t index) const {
    absl::MutexLock lock(&mutex_);
    const auto it = outcomes_.find(index);
    if (it == outcomes_.end() || !std::holds_alternative<Refusal>(it->second)) {
      ADD_FAILURE() << "row " << index << " was not refused";
      return Refusal{Reason::kMalformedMessage, "", "", ""};
    }
    return std::get<Refusal>(it->second);
  }
  bool WasRefused(uint32_t index) const {
    absl::MutexLock lock(&mutex_);
    const auto it = outcomes_.find(index);
    return it != outcomes_.end() && std::holds_alternative<Refusal>(it->second);
  }

 private:
  mutable absl::Mutex mutex_;
  std::map<uint32_t, std::variant<kernels::RowOutput, Refusal>> outcomes_ ABSL_GUARDED_BY(mutex_);
  uint32_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
};

// `count` rows with the indexes 0, 1, ... that a fake device can tell apart by their positions `first`, `first` + 1,
// ...
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
