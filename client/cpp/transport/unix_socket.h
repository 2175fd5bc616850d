// Connections to Unix sockets on this machine.
#pragma once

#include <algorithm>
#include <stop_token>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "service/clock.h"
#include "service/memory/descriptor.h"

namespace sortition::client {

// True if a target is "unix:PATH".
bool IsUnixTarget(absl::string_view target);

// A bound on the time spent waiting for a server on this machine: until a time of a service::SteadyClock, or until a
// stop is requested, which ends a wait within kLongestWait.
class RetryBudget {
 public:
  static constexpr absl::Duration kLongestWait = absl::Milliseconds(50);

  explicit RetryBudget(absl::Time until, std::stop_token stop = {}) : until_(until), stop_(std::move(stop)) {}
  explicit RetryBudget(absl::Duration time, std::stop_token stop = {}) : RetryBudget(Now() + time, std::move(stop)) {}

  bool over() const { return stop_.stop_requested() || Now() >= until_; }
  // Returns how long to wait before over() is checked again; above 0.
  absl::Duration NextWait() const {
    return std::clamp(until_ - Now(), absl::Duration(absl::Milliseconds(1)), kLongestWait);
  }

 private:
  static absl::Time Now() { return service::SteadyClock().Now(); }

  absl::Time until_;  // by that clock
  std::stop_token stop_;
};

// Connects a socket of `type` to "unix:PATH". Blocks only while the listener's queue is full; UNAVAILABLE if it still
// is when the budget is used up.
absl::StatusOr<service::Descriptor> ConnectUnix(absl::string_view target, int type,
                                                const RetryBudget& budget = RetryBudget(absl::Seconds(5)));

}  // namespace sortition::client
