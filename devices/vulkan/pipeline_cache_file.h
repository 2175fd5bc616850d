// Compiled shaders, kept on disk so that the next start need not wait for the driver's compiler.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "devices/vulkan/instance.h"

namespace sortition::devices::vulkan {

// Path in `folder` of the file for this hardware and driver version.
std::string PipelineCachePath(const std::string& folder, const Hardware& hardware);

// Returns nothing if there is no such file or another driver wrote it.
std::vector<std::byte> LoadPipelineCache(const std::string& path, const Hardware& hardware);

// Replaces the file atomically. UNAVAILABLE, with the path, if it cannot be written.
absl::Status SavePipelineCache(const std::string& path, std::span<const std::byte> data);

}  // namespace sortition::devices::vulkan
