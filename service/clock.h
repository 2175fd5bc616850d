// The service's source of time, injected so that tests decide what time it is.
#pragma once

#include <chrono>

#include "absl/time/time.h"

namespace sortition::service {

// Time that only ever goes on, for durations and deadlines: two of its times can be compared, and one alone says
// nothing to people. What day it is, is the log's affair. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
};

// Goes on evenly while somebody sets the machine's clock.
class SteadyClock : public Clock {
 public:
  absl::Time Now() const override {
    return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
  }
};

}  // namespace sortition::service
