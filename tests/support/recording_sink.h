// A sink that keeps the messages of a session, for a test to wait for and to look at.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "service/stream/session.h"

namespace sortition::testing {

// Thread-safe. A wait that lasts longer than kLongestWait returns nothing, so that a lost answer fails its test.
class RecordingSink : public service::SessionSink {
 public:
  static constexpr absl::Duration kLongestWait = absl::Seconds(60);
  using Wanted = std::function<bool(const v1::StreamResponse&)>;

  void Send(const v1::StreamResponse& message, service::Credit credit) override;

  // Takes the first message that is `wanted` out of the record, waiting until one comes.
  std::optional<v1::StreamResponse> Await(const Wanted& wanted);
  // Take without waiting.
  std::optional<v1::StreamResponse> Take(const Wanted& wanted);

  // Messages in the record.
  size_t size() const;
  // Says that all messages have left, whether or not they were taken.
  void LetLeave();

 private:
  std::optional<v1::StreamResponse> TakeLocked(const Wanted& wanted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::deque<v1::StreamResponse> messages_ ABSL_GUARDED_BY(mutex_);
  std::vector<service::Credit> credits_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sortition::testing
