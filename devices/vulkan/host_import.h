// Memory of this process that the device copies from by itself (VK_EXT_external_memory_host).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "devices/vulkan/context.h"

namespace sortition::devices::vulkan {

// The pages that some bytes lie on, as a buffer to copy from. Not thread-safe; its context outlives it.
class HostImport {
 public:
  // The bytes stay mapped as long as the import lives, and it lives until the device is done with it. Fails where the
  // driver does not take this memory. Blocks for as long as the driver takes to make sure of the pages. Only where the
  // hardware's host_import_alignment is not 0.
  static absl::StatusOr<std::unique_ptr<HostImport>> Make(Context* context, std::span<const std::byte> bytes);
  ~HostImport();
  HostImport(const HostImport&) = delete;
  HostImport& operator=(const HostImport&) = delete;

  VkBuffer handle() const { return handle_; }
  // Where in the buffer a byte of the run lies.
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
