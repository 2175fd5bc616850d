// What happens to a device, as it is told to observers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "service/route/health.h"

namespace sortition::service {

struct DeviceEvent {
  std::string_view device;
  DeviceState state = DeviceState::kServing;
  std::string reason;
  bool gave_wrong_answer = false;
  // Of a device that gave a wrong answer to a live row: the rows it answered unchecked since its last self-test, and
  // the request ids of their sequences, not all where there are more than kMostTouched.
  uint64_t unchecked_rows = 0;
  std::vector<std::string> touched;

  static constexpr size_t kMostTouched = 1000;
};

}  // namespace sortition::service
