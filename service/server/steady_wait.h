// Waiting with a bound on the time.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

#include "absl/time/time.h"

namespace sortition::server {

// Blocks until `done()`, which is looked at every few milliseconds, or for `most`; what `done()` said last. Not with
// Abseil's timed waits, whose end moves with the machine's clock when somebody sets it.
template <typename Done>
bool WaitSteadily(absl::Duration most, Done done) {
  using SteadyClock = std::chrono::steady_clock;
  constexpr std::chrono::nanoseconds kLook = std::chrono::milliseconds(5);
  const auto start = SteadyClock::now();
  for (;;) {
    if (done()) return true;
    const absl::Duration left = most - absl::FromChrono(SteadyClock::now() - start);
    if (left <= absl::ZeroDuration()) return false;
    std::this_thread::sleep_for(std::min(kLook, absl::ToChronoNanoseconds(left)));
  }
}

}  // namespace sortition::server
