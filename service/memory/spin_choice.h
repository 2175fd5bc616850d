// Decides whether to poll for a message before sleeping.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace sortition::service {

// Predicts the next wait from the last one: after quick messages the reader polls, after slow ones it sleeps and uses
// no processor. Thread-safe.
class SpinChoice {
 public:
  // `most`: upper bound on polling before sleep; zero: never poll.
  explicit SpinChoice(absl::Duration most) : most_(most) {}

  // Returns how long to poll before sleeping.
  absl::Duration Next() const {
    const absl::Duration last = absl::Nanoseconds(last_wait_.load(std::memory_order_relaxed));
    return last <= most_ + kWakeUp ? most_ : absl::ZeroDuration();
  }
  // Records a message; `wait`: time since the reader began to wait for it.
  void OnMessage(absl::Duration wait) { last_wait_.store(absl::ToInt64Nanoseconds(wait), std::memory_order_relaxed); }

 private:
  // Delay of waking up, tolerated beyond `most`: otherwise one sleep would prevent polling for the next message.
  static constexpr absl::Duration kWakeUp = absl::Microseconds(50);
  const absl::Duration most_;
  std::atomic<int64_t> last_wait_ = 0;
};

}  // namespace sortition::service
