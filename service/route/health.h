// Whether a device may serve: after a self-test, until it fails; then again after a new self-test, later each time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace sortition::service {

enum class DeviceState : uint8_t {
  kProving,  // golden rows run on it
  kServing,
  kQuarantined,  // it failed, or gave a wrong answer; waits for its next self-test
};
inline constexpr DeviceState kAllDeviceStates[] = {DeviceState::kProving, DeviceState::kServing,
                                                   DeviceState::kQuarantined};
std::string_view DeviceStateName(DeviceState state);
// Stands beside those names, of a device that was asked for and is not here.
inline constexpr std::string_view kMissingState = "missing";

// Not thread-safe.
class DeviceHealth {
 public:
  static constexpr absl::Duration kFirstBackoff = absl::Seconds(1);
  static constexpr absl::Duration kLongestBackoff = absl::Minutes(5);
  // A device that has served so long is forgiven what came before.
  static constexpr absl::Duration kForgiven = absl::Minutes(10);
  // How long others get the batches of a device that had no memory for one, and between self-tests that it has none
  // for.
  static constexpr absl::Duration kRest = absl::Seconds(1);
  static constexpr absl::Duration kMemoryBackoff = absl::Seconds(5);

  DeviceState state() const { return state_; }
  bool serves() const { return state_ == DeviceState::kServing; }
  // What the last self-test said, or why the device does not serve.
  const std::string& reason() const { return reason_; }
  uint32_t failures() const { return failures_; }

  // An operator has taken it out of service: no self-test is due until it is asked for.
  void Hold(std::string why);
  bool held() const { return held_; }

  // A device that serves had no memory for a batch, as may happen where it shares its memory with an engine. It is
  // given none until the rest is ended; what it has is as good as ever, and it needs no self-test.
  void Rest(absl::Time now) { rests_until_ = now + kRest; }
  void EndRest(absl::Time now) {
    if (now >= rests_until_) rests_until_ = absl::InfinitePast();
  }
  bool rests() const { return rests_until_ != absl::InfinitePast(); }

  // True from when the next self-test may start.
  bool IsDue(absl::Time now) const { return state_ == DeviceState::kQuarantined && !held_ && now >= next_self_test_; }

  void SelfTestStarted() {
    state_ = DeviceState::kProving;
    held_ = false;
  }
  void Passed(std::string what, absl::Time now);
  // Out of service until a self-test, which is due after a pause that doubles from failure to failure; `for_memory`:
  // after kMemoryBackoff, and it counts as no failure.
  void Quarantine(std::string why, absl::Time now, bool for_memory = false);

 private:
  DeviceState state_ = DeviceState::kServing;
  std::string reason_;
  bool held_ = false;
  uint32_t failures_ = 0;  // in a row
  absl::Time rests_until_ = absl::InfinitePast();
  absl::Time next_self_test_ = absl::InfinitePast();
  absl::Time serves_since_ = absl::InfinitePast();
};

}  // namespace sortition::service
