// A build without Vulkan: no entry names a device.
#include "service/process/vulkan_devices.h"

namespace sortition::server {

void StartVulkan(const std::vector<std::string>& entries, const Config&, Log* log, StartedDevices* started) {
  for (const std::string& entry : entries) {
    Miss(entry, "", absl::FailedPreconditionError("this build has no Vulkan kernels"), log, started);
  }
}

}  // namespace sortition::server
