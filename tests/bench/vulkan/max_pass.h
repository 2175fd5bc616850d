// A plain max shader on a Vulkan device: the cost of reading the logits.
#pragma once

#include <cstdint>
#include <memory>

#include "client/bench/logits.h"
#include "devices/vulkan/buffer.h"
#include "devices/vulkan/commands.h"
#include "devices/vulkan/context.h"

namespace sortition::bench {

// Not thread-safe. Anything that fails aborts.
class MaxPass {
 public:
  // Takes a copy of the rows, all of bf16.
  MaxPass(std::shared_ptr<devices::vulkan::Context> context, const Logits& logits);
  ~MaxPass();

  // Reads all rows once; nanoseconds on the device, by its own clock where it has one.
  uint64_t Run();

 private:
  void MakePipeline();
  void Bind();
  void Record();

  const std::shared_ptr<devices::vulkan::Context> context_;
  const uint32_t rows_;
  const uint32_t quads_a_row_;
  devices::vulkan::SharedBuffer logits_;
  devices::vulkan::Buffer maxima_;
  VkPipelineLayout layout_ = VK_NULL_HANDLE;
  VkPipeline pipeline_ = VK_NULL_HANDLE;
  VkDescriptorPool descriptor_pool_ = VK_NULL_HANDLE;
  VkDescriptorSet descriptors_ = VK_NULL_HANDLE;
  VkQueryPool timestamps_ = VK_NULL_HANDLE;
  devices::vulkan::Commands commands_;
};

}  // namespace sortition::bench
