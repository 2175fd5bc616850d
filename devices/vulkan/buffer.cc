// Choice of memory types, and growth.
#include "devices/vulkan/buffer.h"

#include <algorithm>
#include <optional>

namespace sortition::devices::vulkan {
namespace {

constexpr uint64_t kLeastBytes = 4096;

// Returns the first memory type in `allowed` that has all of `flags`; drivers list better types first.
std::optional<uint32_t> FindType(const VkPhysicalDeviceMemoryProperties& memory, uint32_t allowed,
                                 VkMemoryPropertyFlags flags) {
  for (uint32_t type = 0; type < memory.memoryTypeCount; ++type) {
    if ((allowed >> type & 1) != 0 && (memory.memoryTypes[type].propertyFlags & flags) == flags) return type;
  }
  return std::nullopt;
}

// Tries flags in the order of preference. Every driver has a type that the host can map coherently, and a device-local
// one.
std::optional<uint32_t> ChooseType(const VkPhysicalDeviceMemoryProperties& properties, uint32_t allowed,
                                   Memory memory) {
  constexpr VkMemoryPropertyFlags kMapped = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
  constexpr VkMemoryPropertyFlags kLocal = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
  constexpr VkMemoryPropertyFlags kCached = VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
  switch (memory) {
    case Memory::kDevice:
      return FindType(properties, allowed, kLocal);
    case Memory::kHost:
      for (const VkMemoryPropertyFlags flags : {kMapped | kLocal, kMapped}) {
        if (const auto type = FindType(properties, allowed, flags)) return type;
      }
      return std::nullopt;
    case Memory::kHostCached:
      for (const VkMemoryPropertyFlags flags : {kMapped | kCached | kLocal, kMapped | kCached, kMapped}) {
        if (const auto type = FindType(properties, allowed, flags)) return type;
      }
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

absl::Status Buffer::Reserve(Context* context, Memory memory, uint64_t bytes) {
  if (bytes <= bytes_) return absl::OkStatus();
  Free();
  context_ = context;
  absl::Status status = Allocate(memory, std::max(bytes, kLeastBytes));
  if (!status.ok()) Free();
  return status;
}

absl::Status Buffer::Allocate(Memory memory, uint64_t bytes) {
  const Api& api = context_->api();
  VkBufferCreateInfo create = {VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO};
  create.size = bytes;
  create.usage =
      VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
  create.sharingMode = VK_SHARING_MODE_EXCLUSIVE;
  SORTITION_VULKAN_RETURN_IF_ERROR(api.CreateBuffer(context_->device(), &create, nullptr, &handle_));
  VkMemoryRequirements needs;
  api.GetBufferMemoryRequirements(context_->device(), handle_, &needs);
  const VkPhysicalDeviceMemoryProperties& properties = context_->hardware().memory;
  const std::optional<uint32_t> type = ChooseType(properties, needs.memoryTypeBits, memory);
  if (!type) return absl::InternalError("the Vulkan driver offers no memory for storage buffers");
  VkMemoryAllocateInfo allocate = {VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO};
  allocate.allocationSize = needs.size;
  allocate.memoryTypeIndex = *type;
  SORTITION_VULKAN_RETURN_IF_ERROR(api.AllocateMemory(context_->device(), &allocate, nullptr, &memory_));
  SORTITION_VULKAN_RETURN_IF_ERROR(api.BindBufferMemory(context_->device(), handle_, memory_, 0));
  if (memory != Memory::kDevice) {
    SORTITION_VULKAN_RETURN_IF_ERROR(api.MapMemory(context_->device(), memory_, 0, VK_WHOLE_SIZE, 0, &mapped_));
  }
  bytes_ = bytes;
  is_device_memory_ = (properties.memoryTypes[*type].propertyFlags & VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT) != 0;
  return absl::OkStatus();
}

void Buffer::Free() {
  if (context_ == nullptr) return;
  const Api& api = context_->api();
  api.DestroyBuffer(context_->device(), handle_, nullptr);
  api.FreeMemory(context_->device(), memory_, nullptr);
  handle_ = VK_NULL_HANDLE;
  memory_ = VK_NULL_HANDLE;
  bytes_ = 0;
  mapped_ = nullptr;
}

absl::Status SharedBuffer::Reserve(Context* context, Memory memory, bool copies, uint64_t bytes) {
  if (absl::Status status = host_.Reserve(context, memory, bytes); !status.ok()) return status;
  is_copied_ = copies || !host_.is_device_memory();
  return is_copied_ ? device_.Reserve(context, Memory::kDevice, host_.bytes()) : absl::OkStatus();
}

void SharedBuffer::Free() {
  host_.Free();
  device_.Free();
}

void SharedBuffer::RecordUpload(const Api& api, VkCommandBuffer commands, uint64_t bytes) const {
  if (!is_copied_ || bytes == 0) return;
  const VkBufferCopy region = {0, 0, bytes};
  api.CmdCopyBuffer(commands, host_.handle(), device_.handle(), 1, &region);
}

void SharedBuffer::RecordDownload(const Api& api, VkCommandBuffer commands, uint64_t bytes) const {
  if (!is_copied_ || bytes == 0) return;
  const VkBufferCopy region = {0, 0, bytes};
  api.CmdCopyBuffer(commands, device_.handle(), host_.handle(), 1, &region);
}

}  // namespace sortition::devices::vulkan
