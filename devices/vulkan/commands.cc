// One pool and one fence for one command buffer.
#include "devices/vulkan/commands.h"

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace sortition::devices::vulkan {
namespace {

// A driver that does not answer for this long is taken as lost.
constexpr uint64_t kMostNanoseconds = 60'000'000'000;

}  // namespace

Commands::~Commands() {
  SORTITION_CHECK(IsDone());
  const Api& api = context_.api();
  api.DestroyFence(context_.device(), fence_, nullptr);
  api.DestroyCommandPool(context_.device(), pool_, nullptr);
}

absl::Status Commands::Open() {
  const Api& api = context_.api();
  const VkDevice device = context_.device();
  VkCommandPoolCreateInfo pool = {VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO};
  pool.flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT;
  pool.queueFamilyIndex = context_.hardware().queue_family;
  SORTITION_VULKAN_RETURN_IF_ERROR(api.CreateCommandPool(device, &pool, nullptr, &pool_));
  VkCommandBufferAllocateInfo buffer = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO};
  buffer.commandPool = pool_;
  buffer.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
  buffer.commandBufferCount = 1;
  SORTITION_VULKAN_RETURN_IF_ERROR(api.AllocateCommandBuffers(device, &buffer, &commands_));
  const VkFenceCreateInfo fence = {VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
  SORTITION_VULKAN_RETURN_IF_ERROR(api.CreateFence(device, &fence, nullptr, &fence_));
  return absl::OkStatus();
}

absl::Status Commands::Begin() {
  VkCommandBufferBeginInfo begin = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
  begin.flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT;
  return ToStatus(context_.api().BeginCommandBuffer(commands_, &begin), "vkBeginCommandBuffer");
}

absl::Status Commands::Run() {
  const Api& api = context_.api();
  const VkDevice device = context_.device();
  SORTITION_VULKAN_RETURN_IF_ERROR(api.EndCommandBuffer(commands_));
  SORTITION_VULKAN_RETURN_IF_ERROR(api.ResetFences(device, 1, &fence_));
  if (absl::Status status = context_.Submit(commands_, fence_); !status.ok()) return status;
  const VkResult waited = api.WaitForFences(device, 1, &fence_, VK_TRUE, kMostNanoseconds);
  // After a device is lost, the driver frees everything.
  if (waited == VK_SUCCESS || waited == VK_ERROR_DEVICE_LOST) return ToStatus(waited, "vkWaitForFences");
  is_unanswered_ = true;
  return absl::UnavailableError(absl::StrCat("the Vulkan device does not answer: ", int(waited)));
}

bool Commands::IsDone() const {
  return !is_unanswered_ || context_.api().GetFenceStatus(context_.device(), fence_) != VK_NOT_READY;
}

}  // namespace sortition::devices::vulkan
