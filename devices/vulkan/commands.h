// Commands of one batch, or of one copy.
#pragma once

#include "absl/status/status.h"
#include "devices/vulkan/context.h"

namespace sortition::devices::vulkan {

// A command buffer that is recorded and run repeatedly. Not thread-safe; its context outlives it. It and all that its
// commands name must live until the commands are done.
class Commands {
 public:
  explicit Commands(Context* context) : context_(*context) {}
  ~Commands();
  Commands(const Commands&) = delete;
  Commands& operator=(const Commands&) = delete;

  absl::Status Open();
  // Recorded into between Begin and Run.
  VkCommandBuffer handle() const { return commands_; }
  absl::Status Begin();
  // Blocks until the device has run the commands. UNAVAILABLE: the context is lost.
  absl::Status Run();
  // Returns false while the device may still run commands that it did not finish in time.
  bool IsDone() const;

 private:
  Context& context_;
  VkCommandPool pool_ = VK_NULL_HANDLE;
  VkCommandBuffer commands_ = VK_NULL_HANDLE;
  VkFence fence_ = VK_NULL_HANDLE;
  bool is_unanswered_ = false;
};

}  // namespace sortition::devices::vulkan
