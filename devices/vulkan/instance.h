// The Vulkan devices of a machine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "devices/vulkan/api.h"
#include "kernels/vulkan/shaders.h"

namespace sortition::devices::vulkan {

struct InstanceOptions {
  // For tests: replaces the loader's functions, and receives the complaints of validation layers (on any thread).
  std::function<void(Api*)> replace_functions;
  std::function<void(const std::string&)> validation;
};

// One physical device, as its driver describes it.
struct Hardware {
  VkPhysicalDevice handle = VK_NULL_HANDLE;
  uint32_t index = 0;  // in the order of the loader
  std::string name;
  bool is_processor = false;  // a driver that computes on the CPU
  uint32_t api_version = 0;
  uint32_t vendor_id = 0;
  uint32_t device_id = 0;
  uint32_t driver_version = 0;
  uint8_t cache_uuid[VK_UUID_SIZE] = {};  // identifies the driver's format of cached pipelines
  uint32_t queue_family = 0;              // the first that computes
  bool has_timestamps = false;
  kernels::vulkan::Variant offers;  // capabilities that shaders may use
  // Alignment of process memory that the device can read directly; 0: it cannot.
  uint64_t host_import_alignment = 0;
  // True if the device imports memory that another process allocated with the same driver.
  bool imports_memory = false;
  std::string device_uuid;  // raw bytes; equal in processes that use the same device, ...
  std::string driver_uuid;  // ... and the same driver
  VkPhysicalDeviceLimits limits = {};
  VkPhysicalDeviceMemoryProperties memory = {};
};

// A connection to the loader and its drivers. Thread-safe.
class Instance {
 public:
  // Returns NOT_FOUND if this machine has no Vulkan loader or no driver.
  static absl::StatusOr<std::shared_ptr<Instance>> Create(InstanceOptions options = {});
  ~Instance();
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  const Api& api() const { return api_; }
  // Devices of Vulkan 1.1 or later with a queue that computes.
  const std::vector<Hardware>& hardware() const { return hardware_; }

 private:
  explicit Instance(InstanceOptions options) : options_(std::move(options)) {}
  absl::Status Open();
  absl::Status FindHardware();

  const InstanceOptions options_;
  Api api_;
  VkInstance handle_ = VK_NULL_HANDLE;
  VkDebugUtilsMessengerEXT messenger_ = VK_NULL_HANDLE;
  std::vector<Hardware> hardware_;
};

}  // namespace sortition::devices::vulkan
