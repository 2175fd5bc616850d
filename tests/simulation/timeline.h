// Virtual time: future events in order. All that happens in a simulation is an event of its timeline.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "service/clock.h"

namespace sortition::simulation {

// Not thread-safe.
class Timeline final : public service::Clock {
 public:
  static absl::Time Start() { return absl::UnixEpoch() + absl::Hours(1); }

  absl::Time Now() const override { return now_; }
  absl::Duration Elapsed() const { return now_ - Start(); }

  // Runs events of the same time in the order in which they were planned.
  void At(absl::Time time, absl::AnyInvocable<void()> action) {
    events_.emplace(std::pair(std::max(time, now_), ++planned_), std::move(action));
  }
  void After(absl::Duration delay, absl::AnyInvocable<void()> action) { At(now_ + delay, std::move(action)); }

  // Runs the next event. False if there is none.
  bool RunNext() {
    if (events_.empty()) return false;
    auto event = events_.extract(events_.begin());
    now_ = event.key().first;
    std::move(event.mapped())();
    return true;
  }

 private:
  absl::Time now_ = Start();
  uint64_t planned_ = 0;
  std::map<std::pair<absl::Time, uint64_t>, absl::AnyInvocable<void()>> events_;
};

}  // namespace sortition::simulation
