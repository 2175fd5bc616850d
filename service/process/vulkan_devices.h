// Starts the Vulkan devices of the configuration.
#pragma once

#include <string>
#include <vector>

#include "service/process/device_list.h"

namespace sortition::server {

// Starts the devices that the entries name, each once. A build without Vulkan misses each entry.
void StartVulkan(const std::vector<std::string>& entries, const Config& config, Log* log, StartedDevices* started);

}  // namespace sortition::server
