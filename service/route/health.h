// Whether a device may serve: after a self-test, until it fails; then again after a new self-test, later each time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"

namespace sortition::service {

enum class DeviceState : uint8_t {
  kSelfTest,  // golden rows run on it
  kServing,
  kQuarantined,  // it failed, or gave a wrong answer; waits for its next self-test
};
inline constexpr DeviceState kAllDeviceStates[] = {DeviceState::kSelfTest, DeviceState::kServing,
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
  static constexpr absl::Duration kBatchBackoff = absl::Seconds(1);
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
  void BackOff(absl::Time now) { backs_off_until_ = now + kBatchBackoff; }
  void EndBackoff(absl::Time now) {
    if (now >= backs_off_until_) backs_off_until_ = absl::InfinitePast();
  }
  bool backs_off() const { return backs_off_until_ != absl::InfinitePast(); }

  // True from when the next self-test may start.
  bool IsDue(absl::Time now) const { return state_ == DeviceState::kQuarantined && !held_ && now >= next_self_test_; }

  void SelfTestStarted() {
    state_ = DeviceState::kSelfTest;
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
  absl::Time backs_off_until_ = absl::InfinitePast();
  absl::Time next_self_test_ = absl::InfinitePast();
  absl::Time serves_since_ = absl::InfinitePast();
};

// A change of a device's health, for the event log.
struct DeviceEvent {
  std::string_view device;  // its name
  DeviceState state = DeviceState::kServing;
  std::string reason;
  bool gave_wrong_output = false;
  // Set if the device gave a wrong output for a live row: number of rows that it answered unchecked since its last
  // self-test, and request ids of the sequences that it answered, at most kMostSequences.
  uint64_t unchecked_rows = 0;
  std::vector<std::string> sequences;

  static constexpr size_t kMostSequences = 1000;
};

}  // namespace sortition::service
