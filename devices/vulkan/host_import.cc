// A buffer bound to memory that the driver did not allocate.
#include "devices/vulkan/host_import.h"

#include <bit>

#include "kernels/check.h"

namespace sortition::devices::vulkan {

namespace {

constexpr VkExternalMemoryHandleTypeFlagBits kHostHandleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT;

// Memory types in which later batches see all writes of the host.
uint32_t CoherentTypes(const VkPhysicalDeviceMemoryProperties& memory) {
  uint32_t types = 0;
  for (uint32_t type = 0; type < memory.memoryTypeCount; ++type) {
    if ((memory.memoryTypes[type].propertyFlags & VK_MEMORY_PROPERTY_HOST_COHERENT_BIT) != 0) types |= 1u << type;
  }
  return types;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostImport>> HostImport::Make(Context* context, std::span<const std::byte> bytes) {
  const uint64_t page = context->hardware().host_import_alignment;
  SORTITION_CHECK(std::has_single_bit(page) && !bytes.empty());
  const uint64_t before = reinterpret_cast<uintptr_t>(bytes.data()) & (page - 1);
  const uint64_t size = (before + bytes.size() + page - 1) & ~(page - 1);
  std::unique_ptr<HostImport> made(new HostImport(context, bytes.data() - before, size));
  if (absl::Status status = made->Open(); !status.ok()) return status;
  return made;
}

absl::Status HostImport::Open() {
  const Api& api = context_.api();
  const VkDevice device = context_.device();
  // The device only reads; the interface has no const variant.
  auto* const pointer = const_cast<std::byte*>(pages_);
  VkMemoryHostPointerPropertiesEXT allowed = {VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT};
  SORTITION_VULKAN_RETURN_IF_ERROR(api.GetMemoryHostPointerPropertiesEXT(device, kHostHandleType, pointer, &allowed));

  VkExternalMemoryBufferCreateInfo external = {VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO};
  external.handleTypes = kHostHandleType;
  VkBufferCreateInfo create = {VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO};
  create.pNext = &external;
  create.size = size_;
  create.usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT;
  create.sharingMode = VK_SHARING_MODE_EXCLUSIVE;
  SORTITION_VULKAN_RETURN_IF_ERROR(api.CreateBuffer(device, &create, nullptr, &handle_));
  VkMemoryRequirements needs;
  api.GetBufferMemoryRequirements(device, handle_, &needs);
  const uint32_t types = needs.memoryTypeBits & allowed.memoryTypeBits & CoherentTypes(context_.hardware().memory);
  if (types == 0 || needs.size > size_) return absl::UnimplementedError("the Vulkan driver does not take this memory");

  VkImportMemoryHostPointerInfoEXT import = {VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT};
  import.handleType = kHostHandleType;
  import.pHostPointer = pointer;
  VkMemoryAllocateInfo allocate = {VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO};
  allocate.pNext = &import;
  allocate.allocationSize = size_;
  allocate.memoryTypeIndex = uint32_t(std::countr_zero(types));
  SORTITION_VULKAN_RETURN_IF_ERROR(api.AllocateMemory(device, &allocate, nullptr, &memory_));
  SORTITION_VULKAN_RETURN_IF_ERROR(api.BindBufferMemory(device, handle_, memory_, 0));
  return absl::OkStatus();
}

HostImport::~HostImport() {
  const Api& api = context_.api();
  api.DestroyBuffer(context_.device(), handle_, nullptr);
  api.FreeMemory(context_.device(), memory_, nullptr);
}

}  // namespace sortition::devices::vulkan
