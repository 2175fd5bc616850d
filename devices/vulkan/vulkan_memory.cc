// Addresses, a buffer in the current context, and copies to the host.
#include "devices/vulkan/vulkan_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "devices/vulkan/buffer.h"
#include "devices/vulkan/commands.h"
#include "kernels/check.h"

namespace sortition::devices::vulkan {
namespace {

// Bytes of one copy.
constexpr uint64_t kMostBytes = 8 << 20;

// Copies from the buffer to the host, one at a time. Has its own commands: it runs only for rows whose device has left
// the pool.
class Downloader {
 public:
  Downloader(std::shared_ptr<Context> context, std::shared_ptr<const ImportedBuffer> from)
      : context_(std::move(context)), from_(std::move(from)), commands_(context_.get()) {}

  absl::Status Open(uint64_t most_bytes) {
    absl::Status status = host_.Reserve(context_.get(), Memory::kHostCached, most_bytes);
    return status.ok() ? commands_.Open() : status;
  }
  absl::Status Run(uint64_t offset, std::span<std::byte> to);
  const Commands& commands() const { return commands_; }

 private:
  const std::shared_ptr<Context> context_;
  const std::shared_ptr<const ImportedBuffer> from_;
  Buffer host_;
  Commands commands_;
};

absl::Status Downloader::Run(uint64_t offset, std::span<std::byte> to) {
  if (absl::Status status = commands_.Begin(); !status.ok()) return status;
  const VkBufferCopy copy = {offset, 0, to.size()};
  from_->RecordCopies(commands_.handle(), {&copy, 1}, host_.handle());
  VkMemoryBarrier barrier = {VK_STRUCTURE_TYPE_MEMORY_BARRIER};
  barrier.srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT;
  barrier.dstAccessMask = VK_ACCESS_HOST_READ_BIT;
  context_->api().CmdPipelineBarrier(commands_.handle(), VK_PIPELINE_STAGE_TRANSFER_BIT, VK_PIPELINE_STAGE_HOST_BIT, 0,
                                     1, &barrier, 0, nullptr, 0, nullptr);
  if (absl::Status status = commands_.Run(); !status.ok()) return status;
  std::memcpy(to.data(), host_.mapped(), to.size());
  return absl::OkStatus();
}

// Copies `to.size()` bytes of the buffer from `offset`, with the device, through memory that both see. UNAVAILABLE: the
// context, which belongs to `contexts`, is lost.
absl::Status Download(ContextSource* contexts, const std::shared_ptr<Context>& context,
                      std::shared_ptr<const ImportedBuffer> from, uint64_t offset, std::span<std::byte> to) {
  if (to.empty()) return absl::OkStatus();
  const auto downloader = std::make_shared<Downloader>(context, std::move(from));
  absl::Status status = downloader->Open(std::min<uint64_t>(to.size(), kMostBytes));
  while (status.ok() && !to.empty()) {
    const size_t part = std::min<uint64_t>(to.size(), kMostBytes);
    status = downloader->Run(offset, to.first(part));
    offset += part;
    to = to.subspan(part);
  }
  if (absl::IsUnavailable(status)) context->SetLost();
  if (!downloader->commands().IsDone()) contexts->KeepUntilDone(downloader, &downloader->commands());
  return status;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const VulkanMemory>> VulkanMemory::Make(std::shared_ptr<ContextSource> contexts,
                                                                       const MemoryHandle& handle, uint32_t memory) {
  auto context = contexts->Get();
  if (!context.ok()) return context.status();
  // Asks the driver first: addresses and a descriptor are worthwhile only for memory that it knows.
  auto buffer = ImportedBuffer::Make(*context, handle);
  if (!buffer.ok()) return buffer.status();
  // Reserves unused addresses, where a read of the host faults.
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
