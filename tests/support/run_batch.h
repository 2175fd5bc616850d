// A batch from its submission to its end.
#pragma once

#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "devices/device.h"

namespace sortition::testing {

inline devices::BatchOutput RunBatch(devices::Device* device, std::vector<devices::DeviceRow> rows) {
  devices::BatchOutput result;
  absl::Notification done;
  device->Submit(std::move(rows), [&](devices::BatchOutput r) {
    result = std::move(r);
    done.Notify();
  });
  done.WaitForNotification();
  return result;
}

}  // namespace sortition::testing
