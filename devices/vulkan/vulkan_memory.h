// Memory of another process that survives the loss of the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "devices/imported_memory.h"
#include "devices/vulkan/context_source.h"
#include "devices/vulkan/imported_buffer.h"

namespace sortition::devices::vulkan {

// Keeps its own descriptor, from which each new context imports the memory again.
class VulkanMemory final : public ImportedMemory {
 public:
  // The caller keeps the descriptor. Errors and blocking as for ImportedBuffer::Make and ContextSource::Get.
  static absl::StatusOr<std::shared_ptr<const VulkanMemory>> Make(std::shared_ptr<ContextSource> contexts,
                                                                  const MemoryHandle& handle, uint32_t memory);
  ~VulkanMemory() override;

  // Returns the offset of an address within bytes().
  uint64_t OffsetOf(const std::byte* at) const { return uint64_t(at - bytes().data()); }
  // Returns the buffer in this context. UNAVAILABLE if the context is lost. The first call blocks for as long as the
  // driver takes to map it.
  absl::StatusOr<std::shared_ptr<const ImportedBuffer>> In(const std::shared_ptr<Context>& context) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // If the context was lost, another one is made.
  absl::Status Read(uint64_t offset, std::span<std::byte> to) const override;

 private:
  VulkanMemory(std::shared_ptr<ContextSource> contexts, const MemoryHandle& handle, std::span<const std::byte> bytes,
               uint32_t memory)
      : ImportedMemory(bytes, memory), contexts_(std::move(contexts)), handle_(handle) {}

  const std::shared_ptr<ContextSource> contexts_;
  const MemoryHandle handle_;  // owns its descriptor
  mutable absl::Mutex mutex_;
  mutable std::shared_ptr<const ImportedBuffer> buffer_ ABSL_GUARDED_BY(mutex_);  // of the last context
};

}  // namespace sortition::devices::vulkan
