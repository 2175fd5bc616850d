// Device memory.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "devices/vulkan/context.h"

namespace sortition::devices::vulkan {

// The kind of a buffer's memory.
enum class Memory {
  kDevice,      // device-local, mapped or not
  kHost,        // mapped; device-local if host and device share one memory
  kHostCached,  // mapped, for the host to read
};

// A storage buffer. Not thread-safe; its context outlives it.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer() { Free(); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // Provides at least `bytes`; growing loses the content. The device must not be using the buffer. RESOURCE_EXHAUSTED
  // leaves it empty.
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

// Memory that host and device see: one buffer if the host can map the device's memory, otherwise two and a copy.
class SharedBuffer {
 public:
  // `copies`: forces two buffers. `memory`: kHost or kHostCached.
  absl::Status Reserve(Context* context, Memory memory, bool copies, uint64_t bytes);
  void Free();

  // True if there are two buffers.
  bool is_copied() const { return is_copied_; }
  VkBuffer on_host_handle() const { return host_.handle(); }
  VkBuffer on_device() const { return is_copied_ ? device_.handle() : host_.handle(); }
  uint64_t bytes() const { return host_.bytes(); }
  template <typename T>
  T* on_host() const {
    return static_cast<T*>(host_.mapped());
  }
  // Records the copy of the first `bytes` bytes, if there are two buffers.
  void RecordUpload(const Api& api, VkCommandBuffer commands, uint64_t bytes) const;
  void RecordDownload(const Api& api, VkCommandBuffer commands, uint64_t bytes) const;

 private:
  Buffer host_;
  Buffer device_;
  bool is_copied_ = false;
};

}  // namespace sortition::devices::vulkan
