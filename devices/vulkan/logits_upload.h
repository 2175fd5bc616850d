// Brings a batch's logits into the device's memory, with as few copies as the hardware allows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "devices/device.h"
#include "devices/vulkan/buffer.h"
#include "devices/vulkan/host_import.h"
#include "devices/vulkan/imported_buffer.h"
#include "kernels/vulkan/chunk.h"

namespace sortition::devices::vulkan {

// If the host can map the device's memory, the processor writes there. Otherwise the device reads the rows where they
// lie, if its driver supports that and they lie together, and other rows are staged in host memory. Rows in memory of
// another process are always copied by the device. Each byte of a row is read once. Not thread-safe.
class LogitsUpload {
 public:
  // `copies`: acts as if the host could not map the device's memory.
  absl::Status Reserve(const std::shared_ptr<Context>& context, bool copies, uint64_t bytes);

  // Takes the rows of a chunk and their drafters' probabilities, which must not change until Release. Fails if the
  // driver does.
  absl::Status Put(std::span<const DeviceRow> rows, const kernels::vulkan::Chunk& chunk);
  // Records the copies that the device has to make.
  void Record(const Api& api, VkCommandBuffer commands) const;
  // Call when the device is done with the rows.
  void Release();

  VkBuffer on_device() const { return buffer_.on_device(); }
  uint64_t bytes() const { return buffer_.bytes(); }

 private:
  struct Fetch {
    std::unique_ptr<HostImport> from;
    std::vector<VkBufferCopy> rows;
  };
  struct Import {
    std::shared_ptr<const ImportedBuffer> from;
    std::vector<VkBufferCopy> rows;
  };
  void Stage(std::span<const std::byte> bytes, uint64_t at);
  bool FetchRun(std::span<const DeviceRow> rows, const VkBufferCopy* places);
  absl::Status ImportRow(const DeviceRow& row, const VkBufferCopy& place);

  std::shared_ptr<Context> context_;
  SharedBuffer buffer_;
  std::vector<VkBufferCopy> staged_;  // rows in the host half of the buffer
  std::vector<Fetch> fetched_;
  std::vector<Import> imported_;
};

}  // namespace sortition::devices::vulkan
