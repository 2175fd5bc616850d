// Run a batch and block until its end.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "devices/device.h"

namespace sortition::devices {

inline BatchOutput RunBatch(Device* device, std::vector<DeviceRow> rows) {
  BatchOutput result;
  absl::Notification done;
  device->Submit(std::move(rows), [&](BatchOutput r) {
    result = std::move(r);
    done.Notify();
  });
  done.WaitForNotification();
  return result;
}

// The same, on this thread if the device can (Device::RunHere).
inline BatchOutput RunBatchHere(Device* device, std::span<const DeviceRow* const> rows) {
  BatchOutput result;
  absl::Notification done;
  device->RunHere(rows, [&](BatchOutput r) {
    result = std::move(r);
    done.Notify();
  });
  done.WaitForNotification();
  return result;
}

}  // namespace sortition::devices
