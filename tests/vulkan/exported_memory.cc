// A maker's part: allocation that can be exported, and its descriptor.
#include "tests/vulkan/exported_memory.h"

#include <unistd.h>

namespace sortition::testing {

using devices::vulkan::Api;

namespace {

constexpr VkExternalMemoryHandleTypeFlagBits kHandleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT;

}  // namespace

absl::StatusOr<std::unique_ptr<ExportedMemory>> ExportedMemory::Make(
    std::shared_ptr<devices::vulkan::Instance> instance, uint64_t bytes) {
  std::unique_ptr<ExportedMemory> made(new ExportedMemory(std::move(instance)));
  if (absl::Status status = made->Open(bytes); !status.ok()) return status;
  return made;
}

absl::Status ExportedMemory::Open(uint64_t bytes) {
  const Api& api = instance_->api();
  if (!hardware().imports_memory) return absl::UnimplementedError(hardware().name + " passes no memory on");
  const float priority = 1;
  VkDeviceQueueCreateInfo queue = {VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO};
  queue.queueFamilyIndex = hardware().queue_family;
  queue.queueCount = 1;
  queue.pQueuePriorities = &priority;
  const char* const extension = VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME;
  VkDeviceCreateInfo create = {VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO};
  create.queueCreateInfoCount = 1;
  create.pQueueCreateInfos = &queue;
  create.enabledExtensionCount = 1;
  create.ppEnabledExtensionNames = &extension;
  SORTITION_VULKAN_RETURN_IF_ERROR(api.CreateDevice(hardware().handle, &create, nullptr, &device_));
  if (absl::Status status = Allocate(bytes); !status.ok()) return status;
  void* mapped = nullptr;
  SORTITION_VULKAN_RETURN_IF_ERROR(api.MapMemory(device_, memory_, 0, VK_WHOLE_SIZE, 0, &mapped));
  mapped_ = static_cast<std::byte*>(mapped);
  VkMemoryGetFdInfoKHR get = {VK_STRUCTURE_TYPE_MEMORY_GET_FD_INFO_KHR};
  get.memory = memory_;
  get.handleType = kHandleType;
  SORTITION_VULKAN_RETURN_IF_ERROR(api.GetMemoryFdKHR(device_, &get, &handle_.descriptor));
  handle_.kind = devices::MemoryKind::kVulkan;
  return absl::OkStatus();
}

absl::Status ExportedMemory::Allocate(uint64_t bytes) {
  const Api& api = instance_->api();
  VkExternalMemoryBufferCreateInfo external = {VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO};
  external.handleTypes = kHandleType;
  VkBufferCreateInfo create = {VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO};
  create.pNext = &external;
  create.size = bytes;
  create.usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
  create.sharingMode = VK_SHARING_MODE_EXCLUSIVE;
  SORTITION_VULKAN_RETURN_IF_ERROR(api.CreateBuffer(device_, &create, nullptr, &buffer_));
  VkMemoryRequirements needs;
  api.GetBufferMemoryRequirements(device_, buffer_, &needs);
  constexpr VkMemoryPropertyFlags kMapped = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
  const VkPhysicalDeviceMemoryProperties& types = hardware().memory;
  const auto fits = [&](uint32_t type) {
    return (needs.memoryTypeBits >> type & 1) != 0 && (types.memoryTypes[type].propertyFlags & kMapped) == kMapped;
  };
  while (handle_.memory_type < types.memoryTypeCount && !fits(handle_.memory_type)) ++handle_.memory_type;
  if (handle_.memory_type == types.memoryTypeCount) return absl::UnimplementedError("no memory to map");
  VkExportMemoryAllocateInfo exported = {VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO};
  exported.handleTypes = kHandleType;
  VkMemoryAllocateInfo allocate = {VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO};
  allocate.pNext = &exported;
  allocate.allocationSize = needs.size;
  allocate.memoryTypeIndex = handle_.memory_type;
  handle_.bytes = needs.size;
  SORTITION_VULKAN_RETURN_IF_ERROR(api.AllocateMemory(device_, &allocate, nullptr, &memory_));
  SORTITION_VULKAN_RETURN_IF_ERROR(api.BindBufferMemory(device_, buffer_, memory_, 0));
  return absl::OkStatus();
}

ExportedMemory::~ExportedMemory() {
  if (handle_.descriptor >= 0) close(handle_.descriptor);
  if (device_ == VK_NULL_HANDLE) return;
  const Api& api = instance_->api();
  api.DestroyBuffer(device_, buffer_, nullptr);
  api.FreeMemory(device_, memory_, nullptr);
  api.DestroyDevice(device_, nullptr);
}

}  // namespace sortition::testing
