// Runs a batch and blocks until its end.
#pragma once

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

}  // namespace sortition::devices
