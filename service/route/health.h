// Health of one device: it serves until it fails, and again after a self-test. The pause before the self-test doubles
// with each failure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"

namespace sortition::service {

enum class DeviceState : uint8_t {
  kSelfTest,  // golden rows run on it, and it serves no others
  kServing,
  kQuarantined,  // it failed, gave a wrong output, or is held; waits for its next self-test
};
inline constexpr DeviceState kAllDeviceStates[] = {DeviceState::kSelfTest, DeviceState::kServing,
                                                   DeviceState::kQuarantined};
std::string_view DeviceStateName(DeviceState state);
// Shown in place of a state for a configured device that is not there.
inline constexpr std::string_view kMissingState = "missing";

// Not thread-safe.
class DeviceHealth {
 public:
  static constexpr absl::Duration kFirstBackoff = absl::Seconds(1);
  static constexpr absl::Duration kLongestBackoff = absl::Minutes(5);
  // After serving this long, a device's earlier failures are forgotten.
  static constexpr absl::Duration kForgiven = absl::Minutes(10);
  // Pause without batches after a device had no memory for one, and pause between self-tests that it has no memory for.
  static constexpr absl::Duration kBatchBackoff = absl::Seconds(1);
  static constexpr absl::Duration kMemoryBackoff = absl::Seconds(5);

  DeviceState state() const { return state_; }
  bool serves() const { return state_ == DeviceState::kServing; }
  // Result of the last self-test, or the reason why the device does not serve.
  const std::string& reason() const { return reason_; }

  // Takes the device out of service for an operator: no self-test is due until SelfTestStarted.
  void Hold(std::string why);
  bool held() const { return held_; }

  // Pauses a serving device that had no memory for a batch, for example because it shares its memory with an engine. It
  // gets no batches until EndBackoff. Its batches in flight stay valid, and it needs no self-test.
  void BackOff(absl::Time now) { backs_off_until_ = now + kBatchBackoff; }
  void EndBackoff(absl::Time now) {
    if (now >= backs_off_until_) backs_off_until_ = absl::InfinitePast();
  }
  bool backs_off() const { return backs_off_until_ != absl::InfinitePast(); }

  // Returns true once the next self-test may start.
  bool IsDue(absl::Time now) const { return state_ == DeviceState::kQuarantined && !held_ && now >= next_self_test_; }

  void SelfTestStarted() {
    state_ = DeviceState::kSelfTest;
    held_ = false;
  }
  void Passed(std::string what, absl::Time now);
  // Takes the device out of service until a self-test passes. The self-test is due after a pause that doubles with each
  // failure; with `for_memory` the pause is kMemoryBackoff and no failure is counted.
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
