// Device memory as another process would make and share it: from a separate instance and logical device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "devices/imported_memory.h"
#include "devices/vulkan/instance.h"

namespace sortition::testing {

// Mapped, so that the processor can write rows there. Not thread-safe. Its descriptor is closed with it; who has
// imported that keeps the memory.
class ExportedMemory {
 public:
  // At least `bytes` bytes, on the instance's first device. UNIMPLEMENTED where its driver passes no memory on.
  static absl::StatusOr<std::unique_ptr<ExportedMemory>> Make(std::shared_ptr<devices::vulkan::Instance> instance,
                                                              uint64_t bytes);
  ~ExportedMemory();
  ExportedMemory(const ExportedMemory&) = delete;
  ExportedMemory& operator=(const ExportedMemory&) = delete;

  devices::MemoryIdentity identity() const {
    return {devices::MemoryKind::kVulkan, hardware().device_uuid, hardware().driver_uuid};
  }
  // Its descriptor stays this object's.
  const devices::MemoryHandle& handle() const { return handle_; }
  std::byte* mapped() const { return mapped_; }

 private:
  explicit ExportedMemory(std::shared_ptr<devices::vulkan::Instance> instance) : instance_(std::move(instance)) {}
  absl::Status Open(uint64_t bytes);
  absl::Status Allocate(uint64_t bytes);
  const devices::vulkan::Hardware& hardware() const { return instance_->hardware().front(); }

  const std::shared_ptr<devices::vulkan::Instance> instance_;
  VkDevice device_ = VK_NULL_HANDLE;
  VkBuffer buffer_ = VK_NULL_HANDLE;
  VkDeviceMemory memory_ = VK_NULL_HANDLE;
  devices::MemoryHandle handle_;
  std::byte* mapped_ = nullptr;
};

}  // namespace sortition::testing
