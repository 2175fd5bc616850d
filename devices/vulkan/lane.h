// One batch in flight: its buffers, commands and fence.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "devices/device.h"
#include "devices/vulkan/buffer.h"
#include "devices/vulkan/commands.h"
#include "devices/vulkan/context.h"
#include "devices/vulkan/logits_upload.h"
#include "kernels/vulkan/chunk.h"

namespace sortition::devices::vulkan {

struct LaneOptions {
  uint64_t most_bytes = 0;  // of one buffer; a batch that needs more runs in chunks
  bool copies = false;      // through host memory even if the device's can be mapped
};

// Not thread-safe; several lanes of one context may run at once. Buffers grow to the largest batch.
class Lane {
 public:
  static absl::StatusOr<std::unique_ptr<Lane>> Create(std::shared_ptr<Context> context, const LaneOptions& options);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  const Context& context() const { return *context_; }
  // Commands of the last batch. The lane must live until they are done.
  const Commands& commands() const { return commands_; }

  // Samples the rows; appends one output for each to `*outputs` and adds the time on the device to `*nanoseconds`.
  // Blocks until the batch is done. After an error some outputs are missing; UNAVAILABLE means that the context is
  // lost.
  absl::Status Run(std::span<const DeviceRow> rows, std::vector<kernels::RowOutput>* outputs, uint64_t* nanoseconds);

 private:
  Lane(std::shared_ptr<Context> context, const LaneOptions& options)
      : context_(std::move(context)), options_(options), commands_(context_.get()) {}
  absl::Status Open();
  // Samples the first rows, up to the room in the buffers; sets `*taken` to their number.
  absl::Status RunChunk(std::span<const DeviceRow> rows, size_t* taken, std::vector<kernels::RowOutput>* outputs,
                        uint64_t* nanoseconds);
  absl::Status Reserve(const kernels::vulkan::Chunk::Sizes& sizes);
  absl::Status Upload(std::span<const DeviceRow> rows, kernels::vulkan::Chunk* chunk);
  void Bind();
  absl::Status Record(const kernels::vulkan::Chunk& chunk);
  absl::Status Dispatch(const kernels::vulkan::Chunk& chunk, kernels::vulkan::Shader shader, bool chained, uint32_t x,
                        uint32_t y);
  absl::Status RunCommands(uint64_t* nanoseconds);

  const std::shared_ptr<Context> context_;
  const LaneOptions options_;
  LogitsUpload logits_;
  SharedBuffer inputs_;
  SharedBuffer extras_;
  Buffer scratch_;
  SharedBuffer outputs_;
  SharedBuffer tops_;
  VkDescriptorPool descriptor_pool_ = VK_NULL_HANDLE;
  VkDescriptorSet descriptors_ = VK_NULL_HANDLE;
  VkQueryPool timestamps_ = VK_NULL_HANDLE;
  Commands commands_;
};

}  // namespace sortition::devices::vulkan
