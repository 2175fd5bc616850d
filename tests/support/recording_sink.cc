// The record and its waits.
#include "tests/support/recording_sink.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"

namespace sortition::testing {

void RecordingSink::Send(const v1::StreamResponse& message, service::Credit credit) {
  v1::StreamResponse received;
  SORTITION_CHECK(received.ParseFromString(message.SerializeAsString()));
  absl::MutexLock lock(&mutex_);
  messages_.push_back(std::move(received));
  credits_.push_back(std::move(credit));
}

std::optional<v1::StreamResponse> RecordingSink::TakeLocked(const Wanted& wanted) {
  const auto it = std::find_if(messages_.begin(), messages_.end(), wanted);
  if (it == messages_.end()) return std::nullopt;
  v1::StreamResponse message = std::move(*it);
  messages_.erase(it);
  return message;
}

std::optional<v1::StreamResponse> RecordingSink::Await(const Wanted& wanted) {
  const auto has_one = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::any_of(messages_.begin(), messages_.end(), wanted);
  };
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(&has_one), kLongestWait);
  return TakeLocked(wanted);
}

std::optional<v1::StreamResponse> RecordingSink::Take(const Wanted& wanted) {
  absl::MutexLock lock(&mutex_);
  return TakeLocked(wanted);
}

size_t RecordingSink::size() const {
  absl::MutexLock lock(&mutex_);
  return messages_.size();
}

void RecordingSink::LetLeave() {
  absl::MutexLock lock(&mutex_);
  credits_.clear();
}

}  // namespace sortition::testing
