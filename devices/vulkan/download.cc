// Commands for this alone: it is done for rows whose device has left the pool.
#include "devices/vulkan/download.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "devices/vulkan/buffer.h"

namespace sortition::devices::vulkan {
namespace {

// As many at once.
constexpr uint64_t kMostBytes = 8 << 20;

class Downloader {
 public:
  explicit Downloader(std::shared_ptr<Context> context) : context_(std::move(context)) {}
  ~Downloader() {
    const Api& api = context_->api();
    api.DestroyFence(context_->device(), fence_, nullptr);
    api.DestroyCommandPool(context_->device(), pool_, nullptr);
  }
  Downloader(const Downloader&) = delete;
  Downloader& operator=(const Downloader&) = delete;

  absl::Status Open(uint64_t most_bytes);
  absl::Status Run(const ImportedBuffer& from, uint64_t offset, std::span<std::byte> to);

 private:
  const std::shared_ptr<Context> context_;
  Buffer host_;
  VkCommandPool pool_ = VK_NULL_HANDLE;
  VkCommandBuffer commands_ = VK_NULL_HANDLE;
  VkFence fence_ = VK_NULL_HANDLE;
};

absl::Status Downloader::Open(uint64_t most_bytes) {
  const Api& api = context_->api();
  const VkDevice device = context_->device();
  if (absl::Status status = host_.Reserve(context_.get(), Memory::kHostCached, most_bytes); !status.ok()) {
    return status;
  }
  VkCommandPoolCreateInfo pool = {VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO};
  pool.flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT;
  pool.queueFamilyIndex = context_->hardware().queue_family;
  SORTITION_VULKAN_RETURN_IF_ERROR(api.CreateCommandPool(device, &pool, nullptr, &pool_));
  VkCommandBufferAllocateInfo commands = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO};
  commands.commandPool = pool_;
  commands.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
  commands.commandBufferCount = 1;
  SORTITION_VULKAN_RETURN_IF_ERROR(api.AllocateCommandBuffers(device, &commands, &commands_));
  const VkFenceCreateInfo fence = {VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
  SORTITION_VULKAN_RETURN_IF_ERROR(api.CreateFence(device, &fence, nullptr, &fence_));
  return absl::OkStatus();
}

absl::Status Downloader::Run(const ImportedBuffer& from, uint64_t offset, std::span<std::byte> to) {
  const Api& api = context_->api();
  VkCommandBufferBeginInfo begin = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
  begin.flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT;
  SORTITION_VULKAN_RETURN_IF_ERROR(api.BeginCommandBuffer(commands_, &begin));
  const VkBufferCopy copy = {offset, 0, to.size()};
  from.RecordCopies(commands_, {&copy, 1}, host_.handle());
  VkMemoryBarrier barrier = {VK_STRUCTURE_TYPE_MEMORY_BARRIER};
  barrier.srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT;
  barrier.dstAccessMask = VK_ACCESS_HOST_READ_BIT;
  api.CmdPipelineBarrier(commands_, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &barrier, 0,
                         nullptr, 0, nullptr);
  SORTITION_VULKAN_RETURN_IF_ERROR(api.EndCommandBuffer(commands_));
  if (absl::Status status = context_->SubmitAndWait(commands_, fence_); !status.ok()) return status;
  std::memcpy(to.data(), host_.mapped(), to.size());
  return absl::OkStatus();
}

}  // namespace

absl::Status Download(const std::shared_ptr<Context>& context, const ImportedBuffer& from, uint64_t offset,
                      std::span<std::byte> to) {
  if (to.empty()) return absl::OkStatus();
  Downloader downloader(context);
  absl::Status status = downloader.Open(std::min<uint64_t>(to.size(), kMostBytes));
  while (status.ok() && !to.empty()) {
    const size_t part = std::min<uint64_t>(to.size(), kMostBytes);
    status = downloader.Run(from, offset, to.first(part));
    offset += part;
    to = to.subspan(part);
  }
  if (absl::IsUnavailable(status)) context->SetLost();
  return status;
}

}  // namespace sortition::devices::vulkan
