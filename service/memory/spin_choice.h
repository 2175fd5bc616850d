// Whether it pays to look for a message again and again before sleeping.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace sortition::service {

// Foretells the next wait by the last one: a traffic of quick messages is looked for, one of slow ones is slept for,
// and costs no processor. Thread-safe.
class SpinChoice {
 public:
  // `most`: how long to look before sleeping; zero = never.
  explicit SpinChoice(absl::Duration most) : most_(most) {}

  // How long to look before sleeping.
  absl::Duration Next() const {
    const absl::Duration last = absl::Nanoseconds(last_wait_.load(std::memory_order_relaxed));
    return last <= most_ + kWakeUp ? most_ : absl::ZeroDuration();
  }
  // A message has come; `wait`: since it began to be waited for.
  void OnMessage(absl::Duration wait) { last_wait_.store(absl::ToInt64Nanoseconds(wait), std::memory_order_relaxed); }

 private:
  // By so much later comes what is slept for; that must not keep the next from being looked for.
  static constexpr absl::Duration kWakeUp = absl::Microseconds(50);
  const absl::Duration most_;
  std::atomic<int64_t> last_wait_ = 0;
};

}  // namespace sortition::service
