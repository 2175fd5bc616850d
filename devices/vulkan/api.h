// The Vulkan functions that the device calls, found at run time: a machine without a Vulkan loader runs the same
// binary.
#pragma once

#define VK_NO_PROTOTYPES
#include <vulkan/vulkan_core.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sortition::devices::vulkan {

// A table of functions, as a value: tests replace single functions to make them fail. Thread-safe once filled.
struct Api {
  std::shared_ptr<void> library;  // keeps the functions alive

#define SORTITION_VULKAN_FUNCTION(name) PFN_vk##name name = nullptr;
#include "devices/vulkan/functions.inc"
#undef SORTITION_VULKAN_FUNCTION

  // Loads the functions that need no instance. NOT_FOUND if this machine has no Vulkan loader. Blocks for as long as
  // the dynamic linker takes.
  static absl::StatusOr<Api> Load(const char* library_name = "libvulkan.so.1");
  // Loads the other functions.
  absl::Status LoadFunctionsOf(VkInstance instance);
};

// Converts a result: UNAVAILABLE for a lost device, RESOURCE_EXHAUSTED for memory, INTERNAL for other errors. `what`
// names the call.
absl::Status ToStatus(VkResult result, const char* what);

#define SORTITION_VULKAN_RETURN_IF_ERROR(expression)                                                         \
  if (absl::Status status = ::sortition::devices::vulkan::ToStatus((expression), #expression); !status.ok()) \
  return status

}  // namespace sortition::devices::vulkan
