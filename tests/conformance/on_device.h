// Memory and a stream of a test on a real CUDA device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "devices/cuda/context.h"

namespace sortition {

// The device's primary context, which samplers use, with a separate stream and memory. Not thread-safe. `api` outlives
// it.
class OnDevice {
 public:
  OnDevice(const devices::cuda::Api& api, const devices::cuda::Hardware& hardware)
      : api_(api), device_(hardware.handle) {}
  ~OnDevice() {
    if (context_ == nullptr) return;
    {
      const devices::cuda::CurrentContext current(api_, context_);
      if (stream_ != nullptr) api_.StreamSynchronize(stream_);
      if (memory_ != 0) api_.MemFree(memory_);
      if (stream_ != nullptr) api_.StreamDestroy(stream_);
    }
    api_.DevicePrimaryCtxRelease(device_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  absl::Status Open(uint64_t bytes) {
    SORTITION_CUDA_RETURN_IF_ERROR(api_, DevicePrimaryCtxRetain(&context_, device_));
    const devices::cuda::CurrentContext current(api_, context_);
    if (!current.status().ok()) return current.status();
    SORTITION_CUDA_RETURN_IF_ERROR(api_, StreamCreate(&stream_, devices::cuda::kStreamNonBlocking));
    SORTITION_CUDA_RETURN_IF_ERROR(api_, MemAlloc(&memory_, bytes));
    return absl::OkStatus();
  }
  // Blocks until the bytes are there.
  absl::Status Upload(uint64_t offset, std::span<const std::byte> bytes) {
    const devices::cuda::CurrentContext current(api_, context_);
    if (!current.status().ok()) return current.status();
    SORTITION_CUDA_RETURN_IF_ERROR(api_, MemcpyHtoDAsync(memory_ + offset, bytes.data(), bytes.size(), stream_));
    SORTITION_CUDA_RETURN_IF_ERROR(api_, StreamSynchronize(stream_));
    return absl::OkStatus();
  }
  // Blocks until the stream is done.
  absl::Status Wait() {
    const devices::cuda::CurrentContext current(api_, context_);
    if (!current.status().ok()) return current.status();
    SORTITION_CUDA_RETURN_IF_ERROR(api_, StreamSynchronize(stream_));
    return absl::OkStatus();
  }

  devices::cuda::StreamHandle stream() const { return stream_; }
  void* at(uint64_t offset) const { return reinterpret_cast<void*>(memory_ + offset); }

 private:
  const devices::cuda::Api& api_;
  const devices::cuda::DeviceHandle device_;
  devices::cuda::ContextHandle context_ = nullptr;
  devices::cuda::StreamHandle stream_ = nullptr;
  devices::cuda::DevicePointer memory_ = 0;
};

}  // namespace sortition
