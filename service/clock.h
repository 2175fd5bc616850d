// The service's source of time, injected so that tests decide what time it is.
#pragma once

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace sortition::service {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
};

class RealClock : public Clock {
 public:
  absl::Time Now() const override { return absl::Now(); }
};

}  // namespace sortition::service
