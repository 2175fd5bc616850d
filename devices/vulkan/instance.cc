// Instance and enumeration.
#include "devices/vulkan/instance.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

namespace sortition::devices::vulkan {
namespace {

constexpr const char* kValidationLayer = "VK_LAYER_KHRONOS_validation";

VkBool32 Complain(VkDebugUtilsMessageSeverityFlagBitsEXT, VkDebugUtilsMessageTypeFlagsEXT,
                  const VkDebugUtilsMessengerCallbackDataEXT* data, void* complaint) {
  (*static_cast<const std::function<void(const std::string&)>*>(complaint))(data->pMessage);
  return VK_FALSE;
}

kernels::vulkan::Variant QueryVariant(const Api& api, VkPhysicalDevice handle) {
  VkPhysicalDeviceFeatures features;
  api.GetPhysicalDeviceFeatures(handle, &features);
  VkPhysicalDeviceSubgroupProperties subgroups = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES};
  VkPhysicalDeviceProperties2 properties = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
  properties.pNext = &subgroups;
  api.GetPhysicalDeviceProperties2(handle, &properties);
  constexpr VkSubgroupFeatureFlags kOperations =
      VK_SUBGROUP_FEATURE_BASIC_BIT | VK_SUBGROUP_FEATURE_ARITHMETIC_BIT | VK_SUBGROUP_FEATURE_BALLOT_BIT;
  const bool has_subgroups = (subgroups.supportedStages & VK_SHADER_STAGE_COMPUTE_BIT) != 0 &&
                             (subgroups.supportedOperations & kOperations) == kOperations;
  return {.int64 = features.shaderInt64 == VK_TRUE, .subgroups = has_subgroups};
}

// Returns the names of the device's extensions; none if the driver cannot list them.
std::set<std::string> QueryExtensions(const Api& api, VkPhysicalDevice handle) {
  uint32_t count = 0;
  if (api.EnumerateDeviceExtensionProperties(handle, nullptr, &count, nullptr) != VK_SUCCESS) return {};
  std::vector<VkExtensionProperties> extensions(count);
  if (api.EnumerateDeviceExtensionProperties(handle, nullptr, &count, extensions.data()) != VK_SUCCESS) return {};
  std::set<std::string> names;
  for (const VkExtensionProperties& extension : extensions) names.insert(extension.extensionName);
  return names;
}

// Returns true if a buffer that is copied from may be made of memory of this type. A driver that requires dedicated
// allocations would also need the maker's buffer.
bool ImportsBuffers(const Api& api, VkPhysicalDevice handle, VkExternalMemoryHandleTypeFlagBits type) {
  VkPhysicalDeviceExternalBufferInfo buffer = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_BUFFER_INFO};
  buffer.usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT;
  buffer.handleType = type;
  VkExternalBufferProperties properties = {VK_STRUCTURE_TYPE_EXTERNAL_BUFFER_PROPERTIES};
  api.GetPhysicalDeviceExternalBufferProperties(handle, &buffer, &properties);
  const VkExternalMemoryFeatureFlags features = properties.externalMemoryProperties.externalMemoryFeatures;
  return (features & VK_EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT) != 0 &&
         (features & VK_EXTERNAL_MEMORY_FEATURE_DEDICATED_ONLY_BIT) == 0;
}

// Returns 0 for a driver that does not say that it imports: SwiftShader has the extension and says no.
uint64_t HostImportAlignment(const Api& api, VkPhysicalDevice handle) {
  if (api.GetMemoryHostPointerPropertiesEXT == nullptr) return 0;
  if (!ImportsBuffers(api, handle, VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT)) return 0;
  VkPhysicalDeviceExternalMemoryHostPropertiesEXT host = {
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT};
  VkPhysicalDeviceProperties2 properties = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
  properties.pNext = &host;
  api.GetPhysicalDeviceProperties2(handle, &properties);
  return host.minImportedHostPointerAlignment;
}

void Identify(const Api& api, VkPhysicalDevice handle, Hardware* hardware) {
  VkPhysicalDeviceIDProperties identity = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES};
  VkPhysicalDeviceProperties2 properties = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
  properties.pNext = &identity;
  api.GetPhysicalDeviceProperties2(handle, &properties);
  hardware->device_uuid.assign(reinterpret_cast<const char*>(identity.deviceUUID), VK_UUID_SIZE);
  hardware->driver_uuid.assign(reinterpret_cast<const char*>(identity.driverUUID), VK_UUID_SIZE);
}

std::optional<Hardware> Describe(const Api& api, VkPhysicalDevice handle, uint32_t index) {
  VkPhysicalDeviceProperties properties;
  api.GetPhysicalDeviceProperties(handle, &properties);
  if (properties.apiVersion < VK_API_VERSION_1_1) return std::nullopt;
  uint32_t count = 0;
  api.GetPhysicalDeviceQueueFamilyProperties(handle, &count, nullptr);
  std::vector<VkQueueFamilyProperties> families(count);
  api.GetPhysicalDeviceQueueFamilyProperties(handle, &count, families.data());
  for (uint32_t family = 0; family < count; ++family) {
    if ((families[family].queueFlags & VK_QUEUE_COMPUTE_BIT) == 0) continue;
    Hardware hardware;
    hardware.handle = handle;
    hardware.index = index;
    hardware.name = properties.deviceName;
    hardware.is_processor = properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
    hardware.api_version = properties.apiVersion;
    hardware.vendor_id = properties.vendorID;
    hardware.device_id = properties.deviceID;
    hardware.driver_version = properties.driverVersion;
    std::copy_n(properties.pipelineCacheUUID, VK_UUID_SIZE, hardware.cache_uuid);
    hardware.queue_family = family;
    hardware.has_timestamps = families[family].timestampValidBits == 64;
    hardware.limits = properties.limits;
    hardware.offers = QueryVariant(api, handle);
    const std::set<std::string> extensions = QueryExtensions(api, handle);
    if (extensions.contains(VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME)) {
      hardware.host_import_alignment = HostImportAlignment(api, handle);
    }
    hardware.imports_memory = extensions.contains(VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME) &&
                              ImportsBuffers(api, handle, VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT);
    Identify(api, handle, &hardware);
    api.GetPhysicalDeviceMemoryProperties(handle, &hardware.memory);
    return hardware;
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Instance>> Instance::Create(InstanceOptions options) {
  auto loaded = Api::Load();
  if (!loaded.ok()) return loaded.status();
  std::shared_ptr<Instance> instance(new Instance(std::move(options)));
  instance->api_ = *std::move(loaded);
  if (absl::Status status = instance->Open(); !status.ok()) return status;
  if (absl::Status status = instance->FindHardware(); !status.ok()) return status;
  return instance;
}

Instance::~Instance() {
  if (messenger_ != VK_NULL_HANDLE) api_.DestroyDebugUtilsMessengerEXT(handle_, messenger_, nullptr);
  if (handle_ != VK_NULL_HANDLE) api_.DestroyInstance(handle_, nullptr);
}

absl::Status Instance::Open() {
  VkApplicationInfo application = {VK_STRUCTURE_TYPE_APPLICATION_INFO};
  application.pApplicationName = "sortition";
  application.apiVersion = VK_API_VERSION_1_1;
  VkDebugUtilsMessengerCreateInfoEXT complaints = {VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT};
  complaints.messageSeverity =
      VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT | VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT;
  complaints.messageType =
      VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT | VK_DEBUG_UTILS_MESSAGE_TYPE_PERFORMANCE_BIT_EXT;
  complaints.pfnUserCallback = Complain;
  complaints.pUserData = const_cast<std::function<void(const std::string&)>*>(&options_.validation);
  const char* const extension = VK_EXT_DEBUG_UTILS_EXTENSION_NAME;

  VkInstanceCreateInfo create = {VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO};
  create.pApplicationInfo = &application;
  if (options_.validation) {
    create.pNext = &complaints;
    create.enabledLayerCount = 1;
    create.ppEnabledLayerNames = &kValidationLayer;
    create.enabledExtensionCount = 1;
    create.ppEnabledExtensionNames = &extension;
  }
  const VkResult result = api_.CreateInstance(&create, nullptr, &handle_);
  if (result == VK_ERROR_INCOMPATIBLE_DRIVER) return absl::NotFoundError("the Vulkan loader has no driver");
  if (absl::Status status = ToStatus(result, "vkCreateInstance"); !status.ok()) return status;
  if (absl::Status status = api_.LoadFunctionsOf(handle_); !status.ok()) return status;
  if (options_.validation) {
    SORTITION_VULKAN_RETURN_IF_ERROR(api_.CreateDebugUtilsMessengerEXT(handle_, &complaints, nullptr, &messenger_));
  }
  if (options_.replace_functions) options_.replace_functions(&api_);
  return absl::OkStatus();
}

absl::Status Instance::FindHardware() {
  uint32_t count = 0;
  SORTITION_VULKAN_RETURN_IF_ERROR(api_.EnumeratePhysicalDevices(handle_, &count, nullptr));
  std::vector<VkPhysicalDevice> handles(count);
  SORTITION_VULKAN_RETURN_IF_ERROR(api_.EnumeratePhysicalDevices(handle_, &count, handles.data()));
  for (uint32_t index = 0; index < count; ++index) {
    if (auto hardware = Describe(api_, handles[index], index)) hardware_.push_back(*std::move(hardware));
  }
  if (hardware_.empty()) return absl::NotFoundError("no Vulkan device of version 1.1 or later that computes");
  return absl::OkStatus();
}

}  // namespace sortition::devices::vulkan
