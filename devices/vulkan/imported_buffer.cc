// Import, and the transfer of ownership between processes.
#include "devices/vulkan/imported_buffer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace sortition::devices::vulkan {
namespace {

constexpr VkExternalMemoryHandleTypeFlagBits kFileHandleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT;

bool IsSameFile(int a, int b) {
  struct stat of_a, of_b;
  return fstat(a, &of_a) == 0 && fstat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
}

// Checks that the descriptor is memory of this size. Kernel drivers check descriptors themselves, but drivers that
// compute on the CPU share memory files, and some map any descriptor.
absl::Status CheckDescriptor(const MemoryHandle& handle, bool is_processor) {
  struct stat file;
  if (handle.descriptor < 0 || fstat(handle.descriptor, &file) != 0) {
    return absl::InvalidArgumentError("descriptor: is not open");
  }
  if (is_processor && fcntl(handle.descriptor, F_GET_SEALS) < 0) {
    return absl::InvalidArgumentError("descriptor: is not of memory");
  }
  // The kernel does not report the length of some kinds of memory.
  const bool has_length = is_processor || file.st_size > 0;
  if (has_length && uint64_t(file.st_size) < handle.bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("bytes: ", handle.bytes, " of memory that has ", int64_t(file.st_size)));
  }
  return absl::OkStatus();
}

absl::Status CheckType(const MemoryHandle& handle, const VkPhysicalDeviceMemoryProperties& memory) {
  if (handle.memory_type >= memory.memoryTypeCount) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory_type: ", handle.memory_type, " of ", memory.memoryTypeCount));
  }
  const uint64_t most = memory.memoryHeaps[memory.memoryTypes[handle.memory_type].heapIndex].size;
  if (handle.bytes == 0 || handle.bytes > most) {
    return absl::InvalidArgumentError(absl::StrCat("bytes: ", handle.bytes, " of a heap that has ", most));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const ImportedBuffer>> ImportedBuffer::Make(std::shared_ptr<Context> context,
                                                                           const MemoryHandle& handle) {
  SORTITION_CHECK(context->hardware().imports_memory);
  std::shared_ptr<ImportedBuffer> made(new ImportedBuffer(std::move(context)));
  if (absl::Status status = made->Open(handle); !status.ok()) return status;
  return made;
}

absl::Status ImportedBuffer::Open(const MemoryHandle& handle) {
  const Hardware& hardware = context_->hardware();
  if (absl::Status status = CheckDescriptor(handle, hardware.is_processor); !status.ok()) return status;
  if (absl::Status status = CheckType(handle, hardware.memory); !status.ok()) return status;
  const Api& api = context_->api();
  VkExternalMemoryBufferCreateInfo external = {VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO};
  external.handleTypes = kFileHandleType;
  VkBufferCreateInfo create = {VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO};
  create.pNext = &external;
  create.size = handle.bytes;
  create.usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT;
  create.sharingMode = VK_SHARING_MODE_EXCLUSIVE;
  SORTITION_VULKAN_RETURN_IF_ERROR(api.CreateBuffer(context_->device(), &create, nullptr, &handle_));
  VkMemoryRequirements needs;
  api.GetBufferMemoryRequirements(context_->device(), handle_, &needs);
  if ((needs.memoryTypeBits >> handle.memory_type & 1) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory_type: ", handle.memory_type, " is none that can be copied from"));
  }
  if (needs.size > handle.bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("bytes: ", handle.bytes, " where the driver needs ", needs.size, " for as many"));
  }
  if (absl::Status status = Import(handle); !status.ok()) return status;
  SORTITION_VULKAN_RETURN_IF_ERROR(api.BindBufferMemory(context_->device(), handle_, memory_, 0));
  return absl::OkStatus();
}

absl::Status ImportedBuffer::Import(const MemoryHandle& handle) {
  VkImportMemoryFdInfoKHR import = {VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR};
  import.handleType = kFileHandleType;
  import.fd = fcntl(handle.descriptor, F_DUPFD_CLOEXEC, 0);
  if (import.fd < 0) return absl::ResourceExhaustedError("this process has no descriptor left");
  VkMemoryAllocateInfo allocate = {VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO};
  allocate.pNext = &import;
  // The standard requires the owner's values of both.
  allocate.allocationSize = handle.bytes;
  allocate.memoryTypeIndex = handle.memory_type;
  const VkResult result = context_->api().AllocateMemory(context_->device(), &allocate, nullptr, &memory_);
  if (result == VK_SUCCESS) return absl::OkStatus();  // the driver owns the descriptor now
  // The descriptor is still ours, unless lavapipe closed it: its number may belong to another thread by now.
  if (IsSameFile(import.fd, handle.descriptor)) close(import.fd);
  // An import allocates nothing: lavapipe reports a file that is too short in this way.
  if (result == VK_ERROR_INVALID_EXTERNAL_HANDLE || result == VK_ERROR_OUT_OF_DEVICE_MEMORY ||
      result == VK_ERROR_MEMORY_MAP_FAILED) {
    return absl::InvalidArgumentError(absl::StrCat("descriptor: the Vulkan driver does not know it as ", handle.bytes,
                                                   " bytes of its memory (", int(result), ")"));
  }
  return ToStatus(result, "vkAllocateMemory of memory of another process");
}

ImportedBuffer::~ImportedBuffer() {
  const Api& api = context_->api();
  api.DestroyBuffer(context_->device(), handle_, nullptr);
  api.FreeMemory(context_->device(), memory_, nullptr);
}

void ImportedBuffer::RecordCopies(VkCommandBuffer commands, std::span<const VkBufferCopy> copies, VkBuffer to) const {
  const Api& api = context_->api();
  std::vector<VkBufferMemoryBarrier> ranges;
  ranges.reserve(copies.size());
  for (const VkBufferCopy& copy : copies) {
    VkBufferMemoryBarrier& range = ranges.emplace_back();
    range = {VK_STRUCTURE_TYPE_BUFFER_MEMORY_BARRIER};
    range.dstAccessMask = VK_ACCESS_TRANSFER_READ_BIT;
    range.srcQueueFamilyIndex = VK_QUEUE_FAMILY_EXTERNAL;
    range.dstQueueFamilyIndex = context_->hardware().queue_family;
    range.buffer = handle_;
    range.offset = copy.srcOffset;
    range.size = copy.size;
  }
  api.CmdPipelineBarrier(commands, VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT, VK_PIPELINE_STAGE_TRANSFER_BIT, 0, 0, nullptr,
                         uint32_t(ranges.size()), ranges.data(), 0, nullptr);
  api.CmdCopyBuffer(commands, handle_, to, uint32_t(copies.size()), copies.data());
  for (VkBufferMemoryBarrier& range : ranges) {
    range.dstAccessMask = 0;
    std::swap(range.srcQueueFamilyIndex, range.dstQueueFamilyIndex);
  }
  api.CmdPipelineBarrier(commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, 0, 0, nullptr,
                         uint32_t(ranges.size()), ranges.data(), 0, nullptr);
}

}  // namespace sortition::devices::vulkan
