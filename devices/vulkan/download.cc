// Uses a separate command buffer: this runs only for rows whose device has left the pool.
#include "devices/vulkan/download.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "devices/vulkan/buffer.h"
#include "devices/vulkan/commands.h"

namespace sortition::devices::vulkan {
namespace {

// Bytes of one copy.
constexpr uint64_t kMostBytes = 8 << 20;

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

}  // namespace

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

}  // namespace sortition::devices::vulkan
