// Grows by half at least, so that slowly growing batches do not allocate each time.
#include "devices/cuda/memory.h"

#include <algorithm>

namespace sortition::devices::cuda {

absl::Status PooledMemory::Reserve(uint64_t bytes) {
  if (bytes <= bytes_) return absl::OkStatus();
  const uint64_t grown = std::max(bytes, bytes_ + bytes_ / 2);
  Free();
  const Api& api = context_->api();
  if (context_->hardware().has_memory_pools) {
    SORTITION_CUDA_RETURN_IF_ERROR(api, MemAllocAsync(&address_, grown, stream_));
  } else {
    SORTITION_CUDA_RETURN_IF_ERROR(api, MemAlloc(&address_, grown));
  }
  bytes_ = grown;
  return absl::OkStatus();
}

void PooledMemory::Free() {
  if (bytes_ != 0 && context_->hardware().has_memory_pools) {
    context_->api().MemFreeAsync(address_, stream_);
  } else if (bytes_ != 0) {
    context_->api().MemFree(address_);
  }
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
