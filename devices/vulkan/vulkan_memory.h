// Memory of another process, whatever becomes of the device.
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

// Keeps a descriptor of its own, from which each context that comes to read it imports it anew.
class VulkanMemory final : public ImportedMemory {
 public:
  // The descriptor stays the caller's. Errors as ImportedBuffer::Make and ContextSource::Get; it blocks as they do.
  static absl::StatusOr<std::shared_ptr<const VulkanMemory>> Make(std::shared_ptr<ContextSource> contexts,
                                                                  const MemoryHandle& handle, uint32_t memory);
  ~VulkanMemory() override;

  // Of an address within bytes().
  uint64_t OffsetOf(const std::byte* at) const { return uint64_t(at - bytes().data()); }
  // The buffer of this context, which is not used again once the context is lost: UNAVAILABLE. Blocks for as long as
  // the driver takes to map it, the first time.
  absl::StatusOr<std::shared_ptr<const ImportedBuffer>> In(const std::shared_ptr<Context>& context) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // If the context was lost, another one is made for it.
  absl::Status Read(uint64_t offset, std::span<std::byte> to) const override;

 private:
  VulkanMemory(std::shared_ptr<ContextSource> contexts, const MemoryHandle& handle, std::span<const std::byte> bytes,
               uint32_t memory)
      : ImportedMemory(bytes, memory), contexts_(std::move(contexts)), handle_(handle) {}

  const std::shared_ptr<ContextSource> contexts_;
  const MemoryHandle handle_;  // its descriptor is this object's
  mutable absl::Mutex mutex_;
  mutable std::shared_ptr<const ImportedBuffer> buffer_ ABSL_GUARDED_BY(mutex_);  // of the last context
};

}  // namespace sortition::devices::vulkan
