// Memory of one stream, on the device and on the host, that grows to the largest batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "devices/cuda/context.h"

namespace sortition::devices::cuda {

// Device memory, from the driver's stream-ordered pool. Where the device has no pools, growing and freeing wait for all
// its work. Not thread-safe; the context is current in every call.
class PooledMemory {
 public:
  PooledMemory(std::shared_ptr<Context> context, StreamHandle stream) : context_(std::move(context)), stream_(stream) {}
  ~PooledMemory() { Free(); }
  PooledMemory(const PooledMemory&) = delete;
  PooledMemory& operator=(const PooledMemory&) = delete;

  // Provides at least `bytes`; growing loses the content. After an error there is no memory.
  absl::Status Reserve(uint64_t bytes);
  DevicePointer address() const { return address_; }

 private:
  void Free();

  const std::shared_ptr<Context> context_;
  const StreamHandle stream_;
  DevicePointer address_ = 0;
  uint64_t bytes_ = 0;
};

// Pinned host memory, which the device copies from and to without the processor. Otherwise as PooledMemory.
class PinnedMemory {
 public:
  explicit PinnedMemory(std::shared_ptr<Context> context) : context_(std::move(context)) {}
  ~PinnedMemory() { Free(); }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  absl::Status Reserve(uint64_t bytes);
  std::byte* data() const { return data_; }

 private:
  void Free();

  const std::shared_ptr<Context> context_;
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace sortition::devices::cuda
