// Finds the loader with the dynamic linker.
#include "devices/vulkan/api.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace sortition::devices::vulkan {

absl::StatusOr<Api> Api::Load(const char* library_name) {
  void* const handle = dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return absl::NotFoundError(absl::StrCat("no Vulkan loader: ", dlerror()));
  Api api;
  api.library = std::shared_ptr<void>(handle, [](void* library) { dlclose(library); });
  api.GetInstanceProcAddr = reinterpret_cast<PFN_vkGetInstanceProcAddr>(dlsym(handle, "vkGetInstanceProcAddr"));
  if (api.GetInstanceProcAddr == nullptr)
    return absl::NotFoundError(absl::StrCat(library_name, " is no Vulkan loader"));
#define SORTITION_VULKAN_FUNCTION(name)
#define SORTITION_VULKAN_GLOBAL_FUNCTION(name) \
  if (api.name == nullptr) api.name = reinterpret_cast<PFN_vk##name>(api.GetInstanceProcAddr(nullptr, "vk" #name));
#include "devices/vulkan/functions.inc"
#undef SORTITION_VULKAN_FUNCTION
  if (api.CreateInstance == nullptr) return absl::NotFoundError(absl::StrCat(library_name, " is no Vulkan loader"));
  return api;
}

absl::Status Api::LoadFunctionsOf(VkInstance instance) {
#define SORTITION_VULKAN_FUNCTION(name) \
  if (name == nullptr) name = reinterpret_cast<PFN_vk##name>(GetInstanceProcAddr(instance, "vk" #name));
#include "devices/vulkan/functions.inc"
#undef SORTITION_VULKAN_FUNCTION
  // May be null: the debug messenger without validation, host pointers and memory descriptors on drivers that lack
  // them. All other functions are of Vulkan 1.1.
  if (QueueSubmit == nullptr) return absl::InternalError("the Vulkan loader lacks a function of Vulkan 1.0");
  return absl::OkStatus();
}

absl::Status ToStatus(VkResult result, const char* what) {
  switch (result) {
    case VK_SUCCESS:
      return absl::OkStatus();
    case VK_ERROR_DEVICE_LOST:
      return absl::UnavailableError(absl::StrCat("the Vulkan device is lost: ", what));
    case VK_ERROR_OUT_OF_HOST_MEMORY:
    case VK_ERROR_OUT_OF_DEVICE_MEMORY:
    case VK_ERROR_TOO_MANY_OBJECTS:
      return absl::ResourceExhaustedError(absl::StrCat("the Vulkan device has no memory left: ", what));
    default:
      return absl::InternalError(absl::StrCat("Vulkan error ", int(result), ": ", what));
  }
}

}  // namespace sortition::devices::vulkan
