// Addresses, and a buffer in the current context.
#include "devices/vulkan/vulkan_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "devices/vulkan/download.h"
#include "kernels/check.h"

namespace sortition::devices::vulkan {

absl::StatusOr<std::shared_ptr<const VulkanMemory>> VulkanMemory::Make(std::shared_ptr<ContextSource> contexts,
                                                                       const MemoryHandle& handle, uint32_t memory) {
  auto context = contexts->Get();
  if (!context.ok()) return context.status();
  // Asks the driver first: addresses and a descriptor are worthwhile only for memory that it knows.
  auto buffer = ImportedBuffer::Make(*context, handle);
  if (!buffer.ok()) return buffer.status();
  // Reserves addresses that nothing else has and that fault when the host reads there.
  void* const bytes = mmap(nullptr, handle.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (bytes == MAP_FAILED)
    return absl::ResourceExhaustedError(absl::StrCat("no addresses for ", handle.bytes, " bytes"));
  MemoryHandle own = handle;
  own.descriptor = fcntl(handle.descriptor, F_DUPFD_CLOEXEC, 0);
  if (own.descriptor < 0) {
    munmap(bytes, handle.bytes);
    return absl::ResourceExhaustedError("this process has no descriptor left");
  }
  std::shared_ptr<VulkanMemory> made(
      new VulkanMemory(std::move(contexts), own, {static_cast<const std::byte*>(bytes), handle.bytes}, memory));
  absl::MutexLock lock(&made->mutex_);
  made->buffer_ = *std::move(buffer);
  return made;
}

VulkanMemory::~VulkanMemory() {
  munmap(const_cast<std::byte*>(bytes().data()), bytes().size());
  close(handle_.descriptor);
}

absl::StatusOr<std::shared_ptr<const ImportedBuffer>> VulkanMemory::In(const std::shared_ptr<Context>& context) const {
  if (context->lost()) return absl::UnavailableError("the Vulkan device is lost");
  absl::MutexLock lock(&mutex_);
  if (buffer_ == nullptr || &buffer_->context() != context.get()) {
    buffer_ = nullptr;
    auto made = ImportedBuffer::Make(context, handle_);
    if (!made.ok()) return made.status();
    buffer_ = *std::move(made);
  }
  return buffer_;
}

absl::Status VulkanMemory::Read(uint64_t offset, std::span<std::byte> to) const {
  SORTITION_CHECK(offset <= bytes().size() && to.size() <= bytes().size() - offset);
  const auto context = contexts_->Get();
  if (!context.ok()) return context.status();
  const auto buffer = In(*context);
  if (!buffer.ok()) return buffer.status();
  return Download(contexts_.get(), *context, *buffer, offset, to);
}

}  // namespace sortition::devices::vulkan
