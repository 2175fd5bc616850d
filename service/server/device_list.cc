// The kinds of devices this build has.
#include "service/server/device_list.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "devices/cpu/cpu_device.h"

namespace sortition::server {

absl::StatusOr<std::vector<std::unique_ptr<devices::Device>>> StartDevices(const Config& config) {
  std::vector<std::unique_ptr<devices::Device>> started;
  for (auto kind = config.devices.begin(); kind != config.devices.end(); ++kind) {
    if (std::find(config.devices.begin(), kind, *kind) != kind) {
      return absl::InvalidArgumentError(absl::StrCat("--devices: \"", *kind, "\" is named twice"));
    }
    if (*kind != "cpu") {
      return absl::InvalidArgumentError(absl::StrCat("--devices: this build has no \"", *kind, "\"; it has cpu"));
    }
    if (!devices::IsCpuTarget(config.cpu_target)) {
      return absl::InvalidArgumentError(absl::StrCat("--cpu_target: this machine runs no \"", config.cpu_target,
                                                     "\"; it runs ", devices::CpuTargetNames()));
    }
    started.push_back(std::make_unique<devices::CpuDevice>(
        devices::CpuDeviceOptions{.threads = config.cpu_threads, .target = config.cpu_target}));
  }
  if (started.empty()) return absl::InvalidArgumentError("--devices: at least one is needed");
  return started;
}

}  // namespace sortition::server
