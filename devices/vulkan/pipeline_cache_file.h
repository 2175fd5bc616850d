// What a driver made of the shaders, kept on disk so that the next start need not wait for its compiler.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "devices/vulkan/instance.h"

namespace sortition::devices::vulkan {

// The file of this hardware and driver version in `folder`.
std::string PipelineCachePath(const std::string& folder, const Hardware& hardware);

// Empty where there is no such file, or where another driver wrote it.
std::vector<std::byte> LoadPipelineCache(const std::string& path, const Hardware& hardware);

// Replaces the file at once: nobody reads half of it. UNAVAILABLE, with the path, if it cannot be written.
absl::Status SavePipelineCache(const std::string& path, std::span<const std::byte> data);

}  // namespace sortition::devices::vulkan
