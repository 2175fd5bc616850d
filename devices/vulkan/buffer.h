// Device memory.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "devices/vulkan/context.h"

namespace sortition::devices::vulkan {

// Where a buffer's memory may lie.
enum class Memory {
  kDevice,      // the device's, whether or not the host sees it
  kHost,        // mapped; the device's own where that is one memory
  kHostCached,  // mapped, for the host to read
};

// A storage buffer. Not thread-safe; its context outlives it.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer() { Free(); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // At least `bytes` bytes, whose content is lost if there were fewer. The buffer must not be in use by the device.
  // RESOURCE_EXHAUSTED leaves it empty.
  absl::Status Reserve(Context* context, Memory memory, uint64_t bytes);
  void Free();

  VkBuffer handle() const { return handle_; }
  uint64_t bytes() const { return bytes_; }
  void* mapped() const { return mapped_; }  // null in kDevice memory
  bool is_device_memory() const { return is_device_memory_; }

 private:
  absl::Status Allocate(Memory memory, uint64_t bytes);

  Context* context_ = nullptr;
  VkBuffer handle_ = VK_NULL_HANDLE;
  VkDeviceMemory memory_ = VK_NULL_HANDLE;
  uint64_t bytes_ = 0;
  void* mapped_ = nullptr;
  bool is_device_memory_ = false;
};

// Memory that host and device see: one buffer where the host can map the device's memory, otherwise two and a copy.
class SharedBuffer {
 public:
  // `copies`: two buffers even where one would do. `memory`: kHost or kHostCached.
  absl::Status Reserve(Context* context, Memory memory, bool copies, uint64_t bytes);
  void Free();

  // There are two.
  bool is_copied() const { return is_copied_; }
  VkBuffer on_host_handle() const { return host_.handle(); }
  VkBuffer on_device() const { return is_copied_ ? device_.handle() : host_.handle(); }
  uint64_t bytes() const { return host_.bytes(); }
  template <typename T>
  T* on_host() const {
    return static_cast<T*>(host_.mapped());
  }
  // Records the copy of the first `bytes` bytes, if one is needed at all.
  void RecordUpload(const Api& api, VkCommandBuffer commands, uint64_t bytes) const;
  void RecordDownload(const Api& api, VkCommandBuffer commands, uint64_t bytes) const;

 private:
  Buffer host_;
  Buffer device_;
  bool is_copied_ = false;
};

}  // namespace sortition::devices::vulkan
