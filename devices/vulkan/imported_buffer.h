// Memory that another process allocated with the same driver (VK_KHR_external_memory_fd), imported into one context.
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

// A buffer over the whole allocation, to copy from. Immutable, except its content; must live until the device is done
// with it. Thread-safe.
class ImportedBuffer {
 public:
  // Requires hardware that imports memory; if the hardware is the processor, the memory's maker must be trusted
  // (VulkanDeviceOptions::trusts_makers). The caller keeps the descriptor. INVALID_ARGUMENT names the part of the
  // handle that does not match the driver's memory. Blocks for as long as the driver takes to map it.
  static absl::StatusOr<std::shared_ptr<const ImportedBuffer>> Make(std::shared_ptr<Context> context,
                                                                    const MemoryHandle& handle);
  ~ImportedBuffer();
  ImportedBuffer(const ImportedBuffer&) = delete;
  ImportedBuffer& operator=(const ImportedBuffer&) = delete;

  const Context& context() const { return *context_; }
  // Records copies that read each byte once. They see all that the maker wrote before the commands were submitted.
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
