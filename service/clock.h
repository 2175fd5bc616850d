// The service's source of time, injected so that tests set the time.
#pragma once

#include <chrono>

#include "absl/time/time.h"

namespace sortition::service {

// Monotonic time, for durations and deadlines. Its times can be compared with each other but are not wall-clock times;
// only the log uses wall-clock time. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
};

// Advances evenly even if somebody sets the machine's clock.
class SteadyClock : public Clock {
 public:
  absl::Time Now() const override {
    return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
  }
};

}  // namespace sortition::service
