// Commands of one batch, or of one copy.
#pragma once

#include "absl/status/status.h"
#include "devices/vulkan/context.h"

namespace sortition::devices::vulkan {

// A command buffer that is recorded and run again and again. Not thread-safe; its context outlives it. Neither it nor
// anything that its commands name is destroyed before it is done.
class Commands {
 public:
  explicit Commands(Context* context) : context_(*context) {}
  ~Commands();
  Commands(const Commands&) = delete;
  Commands& operator=(const Commands&) = delete;

  absl::Status Open();
  // To be recorded into from Begin to Run.
  VkCommandBuffer handle() const { return commands_; }
  absl::Status Begin();
  // Blocks until the device has run them. UNAVAILABLE: the context is lost.
  absl::Status Run();
  // False if the device did not answer in time, for as long as it may still be at them.
  bool IsDone() const;

 private:
  Context& context_;
  VkCommandPool pool_ = VK_NULL_HANDLE;
  VkCommandBuffer commands_ = VK_NULL_HANDLE;
  VkFence fence_ = VK_NULL_HANDLE;
  bool is_unanswered_ = false;
};

}  // namespace sortition::devices::vulkan
