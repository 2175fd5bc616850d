// Memory that another process has allocated with the same driver (VK_KHR_external_memory_fd), as one context knows it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "devices/imported_memory.h"
#include "devices/vulkan/context.h"

namespace sortition::devices::vulkan {

// A buffer over the whole allocation, to copy from. Immutable but for its content; it lives until the device is done
// with it. Thread-safe.
class ImportedBuffer {
 public:
  // The descriptor stays the caller's. INVALID_ARGUMENT names what of the handle is not as the driver's memory is.
  // Blocks for as long as the driver takes to map it. Only where the hardware imports memory; its maker is trusted
  // where the hardware is the processor (VulkanDeviceOptions::trusts_makers).
  static absl::StatusOr<std::shared_ptr<const ImportedBuffer>> Make(std::shared_ptr<Context> context,
                                                                    const MemoryHandle& handle);
  ~ImportedBuffer();
  ImportedBuffer(const ImportedBuffer&) = delete;
  ImportedBuffer& operator=(const ImportedBuffer&) = delete;

  const Context& context() const { return *context_; }
  // Records copies, which read each of their bytes once. What the maker had written when the commands were submitted is
  // seen by them.
  void RecordCopies(VkCommandBuffer commands, std::span<const VkBufferCopy> copies, VkBuffer to) const;

 private:
  explicit ImportedBuffer(std::shared_ptr<Context> context) : context_(std::move(context)) {}
  absl::Status Open(const MemoryHandle& handle);
  absl::Status Import(const MemoryHandle& handle);

  const std::shared_ptr<Context> context_;
  VkBuffer handle_ = VK_NULL_HANDLE;
  VkDeviceMemory memory_ = VK_NULL_HANDLE;
};

}  // namespace sortition::devices::vulkan
