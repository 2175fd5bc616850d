// Choice of a driver, by the loader's environment variable.
#include "tests/vulkan/drivers.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

namespace sortition::testing {

const std::vector<Driver>& Drivers() {
  static const auto& drivers = *new std::vector<Driver>{
      {"lavapipe",
       "mesa-vulkan-drivers",
       {"/usr/share/vulkan/icd.d/lvp_icd.x86_64.json", "/usr/share/vulkan/icd.d/lvp_icd.aarch64.json",
        "/usr/share/vulkan/icd.d/lvp_icd.json"}},
      {"swiftshader",
       "chromium-common",
       {"/usr/lib/chromium/vk_swiftshader_icd.json", "/usr/lib/chromium-browser/vk_swiftshader_icd.json"}},
  };
  return drivers;
}

std::string ManifestOf(const Driver& driver) {
  for (const std::string& path : driver.manifests) {
    if (access(path.c_str(), R_OK) == 0) return path;
  }
  return "";
}

absl::StatusOr<std::shared_ptr<devices::vulkan::Instance>> OpenDriver(
    const Driver& driver, std::function<void(devices::vulkan::Api*)> replace_functions) {
  const std::string manifest = ManifestOf(driver);
  setenv("VK_ICD_FILENAMES", manifest.c_str(), 1);
  setenv("VK_DRIVER_FILES", manifest.c_str(), 1);
  devices::vulkan::InstanceOptions options;
  options.replace_functions = std::move(replace_functions);
  if (access("/usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json", R_OK) == 0) {
    options.validation = [](const std::string& complaint) { ADD_FAILURE() << complaint; };
  }
  return devices::vulkan::Instance::Create(std::move(options));
}

}  // namespace sortition::testing
