// Grows by half at least, so that slowly growing batches do not allocate each time.
#include "devices/cuda/memory.h"

#include <algorithm>

namespace sortition::devices::cuda {

absl::Status PooledMemory::Reserve(uint64_t bytes) {
  if (bytes <= bytes_) return absl::OkStatus();
  const uint64_t grown = std::max(bytes, bytes_ + bytes_ / 2);
  Free();
  const Api& api = context_->api();
  SORTITION_CUDA_RETURN_IF_ERROR(api, MemAllocAsync(&address_, grown, stream_));
  bytes_ = grown;
  return absl::OkStatus();
}

void PooledMemory::Free() {
  if (bytes_ != 0) context_->api().MemFreeAsync(address_, stream_);
  address_ = 0;
  bytes_ = 0;
}

absl::Status PinnedMemory::Reserve(uint64_t bytes) {
  if (bytes <= bytes_) return absl::OkStatus();
  const uint64_t grown = std::max(bytes, bytes_ + bytes_ / 2);
  Free();
  const Api& api = context_->api();
  void* memory = nullptr;
  SORTITION_CUDA_RETURN_IF_ERROR(api, MemHostAlloc(&memory, grown, 0));
  data_ = static_cast<std::byte*>(memory);
  bytes_ = grown;
  return absl::OkStatus();
}

void PinnedMemory::Free() {
  if (data_ != nullptr) context_->api().MemFreeHost(data_);
  data_ = nullptr;
  bytes_ = 0;
}

}  // namespace sortition::devices::cuda
