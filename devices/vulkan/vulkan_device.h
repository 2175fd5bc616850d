// A Vulkan device: one thread for each batch in flight.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "devices/batch_threads.h"
#include "devices/device.h"
#include "devices/vulkan/context_source.h"
#include "devices/vulkan/instance.h"
#include "devices/vulkan/lane.h"

namespace sortition::devices {

struct VulkanDeviceOptions {
  std::string name = "vulkan0";
  uint32_t max_batch_rows = 1024;
  uint32_t batches_in_flight = 2;
  uint64_t max_buffer_bytes = 256 << 20;         // of one buffer; the driver may allow less
  std::optional<vulkan::Workgroups> workgroups;  // instead of those that suit the hardware
  std::optional<kernels::vulkan::Variant>
      variant;                        // of the shaders, instead of what suits the hardware, which offers it
  std::string pipeline_cache_folder;  // where compiled shaders are kept over restarts; empty: nowhere
  bool copies = false;                // through memory of the host's own even where the device's can be mapped
  uint32_t memory = kHostMemory;      // DeviceDescription::memory; any other is shared with other processes
  // Share memory even where the driver computes on the CPU. There it is a file, and what the driver goes by, its length
  // or where in it the bytes are, stays in its maker's hands: a maker that means harm could end this process with it,
  // or have other memory of it read.
  bool trusts_makers = false;
};

// Thread-safe. A batch whose rows do not fit the buffers runs in slices, one after the other.
//
// A batch that ends with an error leaves no trace. UNAVAILABLE means that the driver has lost the device: so end all
// batches in flight, and the next one after them starts the device anew, or ends with the reason why that failed.
//
// Destruction as that of BatchThreads.
class VulkanDevice final : public Device {
 public:
  // Blocks for as long as the driver takes to compile the shaders. The error says what the driver failed at.
  static absl::StatusOr<std::unique_ptr<VulkanDevice>> Start(std::shared_ptr<vulkan::Instance> instance,
                                                             const vulkan::Hardware& hardware,
                                                             const VulkanDeviceOptions& options);

  kernels::vulkan::Variant variant() const { return context_options_.variant; }
  // Why compiled shaders are not kept, if they were to be.
  absl::Status cache_status() const { return contexts_->cache_status(); }
  const DeviceDescription& description() const override { return description_; }
  void Submit(std::vector<DeviceRow> rows, Done done) override;
  absl::StatusOr<std::shared_ptr<const ImportedMemory>> Import(const MemoryHandle& handle) override;

 private:
  VulkanDevice(std::shared_ptr<vulkan::Instance> instance, const vulkan::Hardware& hardware,
               const VulkanDeviceOptions& options);
  // `*lane` is the thread's; it is null where there is none, before and after.
  BatchOutput Run(const std::vector<DeviceRow>& rows, std::unique_ptr<vulkan::Lane>* lane);
  // A lane of a context that is not lost, as far as anyone knows.
  absl::Status OpenLane(std::unique_ptr<vulkan::Lane>* lane);
  void CloseLane(std::unique_ptr<vulkan::Lane> lane);

  const vulkan::ContextOptions context_options_;
  const vulkan::LaneOptions lane_options_;
  DeviceDescription description_;
  const std::shared_ptr<vulkan::ContextSource> contexts_;
  BatchThreads threads_;  // destroyed first
};

}  // namespace sortition::devices
