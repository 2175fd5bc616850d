// Pauses before self-tests.
#include "service/route/health.h"

#include <algorithm>
#include <utility>

namespace sortition::service {

std::string_view DeviceStateName(DeviceState state) {
  switch (state) {
    case DeviceState::kSelfTest:
      return "self_test";
    case DeviceState::kServing:
      return "serving";
    case DeviceState::kQuarantined:
      return "quarantined";
  }
  __builtin_unreachable();
}

void DeviceHealth::Passed(std::string what, absl::Time now) {
  state_ = DeviceState::kServing;
  reason_ = std::move(what);
  serves_since_ = now;
}

void DeviceHealth::Hold(std::string why) {
  state_ = DeviceState::kQuarantined;
  held_ = true;
  reason_ = std::move(why);
}

void DeviceHealth::Quarantine(std::string why, absl::Time now, bool for_memory) {
  if (state_ == DeviceState::kServing && now - serves_since_ >= kForgiven) failures_ = 0;
  state_ = DeviceState::kQuarantined;
  reason_ = std::move(why);
  backs_off_until_ = absl::InfinitePast();
  if (for_memory) {
    next_self_test_ = now + kMemoryBackoff;
    return;
  }
  const uint32_t doublings = std::min(failures_++, 16u);
  next_self_test_ = now + std::min(kFirstBackoff * (1 << doublings), kLongestBackoff);
}

}  // namespace sortition::service
