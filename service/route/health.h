// Whether a device may serve: after a proof, until it fails; then again after a new proof, later each time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace sortition::service {

enum class DeviceState : uint8_t {
  kProving,  // known rows run on it
  kServing,
  kQuarantined,  // it failed, or gave a wrong answer; waits for its next proof
};
inline constexpr DeviceState kAllDeviceStates[] = {DeviceState::kProving, DeviceState::kServing,
                                                   DeviceState::kQuarantined};
std::string_view DeviceStateName(DeviceState state);

// Not thread-safe.
class DeviceHealth {
 public:
  static constexpr absl::Duration kFirstBackoff = absl::Seconds(1);
  static constexpr absl::Duration kLongestBackoff = absl::Minutes(5);
  // A device that has served so long is forgiven what came before.
  static constexpr absl::Duration kForgiven = absl::Minutes(10);

  DeviceState state() const { return state_; }
  bool serves() const { return state_ == DeviceState::kServing; }
  // What the last proof said, or why the device does not serve.
  const std::string& reason() const { return reason_; }
  uint32_t failures() const { return failures_; }

  // An operator has taken it out of service: no proof is due until it is asked for.
  void Hold(std::string why);
  bool held() const { return held_; }

  // True from when the next proof may start.
  bool IsDue(absl::Time now) const { return state_ == DeviceState::kQuarantined && !held_ && now >= next_proof_; }

  void ProofStarted() {
    state_ = DeviceState::kProving;
    held_ = false;
  }
  void Proved(std::string what, absl::Time now);
  // Out of service until a proof, which is due after a pause that doubles from failure to failure.
  void Quarantine(std::string why, absl::Time now);

 private:
  DeviceState state_ = DeviceState::kServing;
  std::string reason_;
  bool held_ = false;
  uint32_t failures_ = 0;  // in a row
  absl::Time next_proof_ = absl::InfinitePast();
  absl::Time serves_since_ = absl::InfinitePast();
};

}  // namespace sortition::service
