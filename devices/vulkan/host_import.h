// Memory of this process that the device reads directly (VK_EXT_external_memory_host).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "devices/vulkan/context.h"

namespace sortition::devices::vulkan {

// The pages around some bytes, as a buffer to copy from. Not thread-safe; its context outlives it.
class HostImport {
 public:
  // Requires hardware with host_import_alignment != 0. The bytes must stay mapped while the import lives, and it must
  // live until the device is done with it. Fails if the driver does not take this memory. Blocks while the driver pins
  // the pages.
  static absl::StatusOr<std::unique_ptr<HostImport>> Make(Context* context, std::span<const std::byte> bytes);
  ~HostImport();
  HostImport(const HostImport&) = delete;
  HostImport& operator=(const HostImport&) = delete;

  VkBuffer handle() const { return handle_; }
  // Returns the offset in the buffer of a byte of the run.
  uint64_t OffsetOf(const std::byte* at) const { return uint64_t(at - pages_); }

 private:
  HostImport(Context* context, const std::byte* pages, uint64_t size)
      : context_(*context), pages_(pages), size_(size) {}
  absl::Status Open();

  Context& context_;
  const std::byte* const pages_;
  const uint64_t size_;  // whole pages
  VkBuffer handle_ = VK_NULL_HANDLE;
  VkDeviceMemory memory_ = VK_NULL_HANDLE;
};

}  // namespace sortition::devices::vulkan
