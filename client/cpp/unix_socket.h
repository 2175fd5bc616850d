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

// Whether a target is "unix:PATH".
bool IsUnixTarget(absl::string_view target);

// How long to wait for a server on this machine: until a time of a service::SteadyClock, or until somebody asks to
// stop, which ends a wait within kLongestWait.
class RetryBudget {
 public:
  static constexpr absl::Duration kLongestWait = absl::Milliseconds(50);

  explicit RetryBudget(absl::Time until, std::stop_token stop = {}) : until_(until), stop_(std::move(stop)) {}
  explicit RetryBudget(absl::Duration time, std::stop_token stop = {}) : RetryBudget(Now() + time, std::move(stop)) {}

  bool over() const { return stop_.stop_requested() || Now() >= until_; }
  // What to wait before over() is looked at again; more than nothing.
  absl::Duration NextWait() const {
    return std::clamp(until_ - Now(), absl::Duration(absl::Milliseconds(1)), kLongestWait);
  }

 private:
  static absl::Time Now() { return service::SteadyClock().Now(); }

  absl::Time until_;  // of that clock
  std::stop_token stop_;
};

// Connects a socket of `type` to "unix:PATH". Blocks only where the listener's queue is full; UNAVAILABLE if it still
// is when patience is over.
absl::StatusOr<service::Descriptor> ConnectUnix(absl::string_view target, int type,
                                                const RetryBudget& budget = RetryBudget(absl::Seconds(5)));

}  // namespace sortition::client
