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
  uint64_t max_buffer_bytes = 256 << 20;            // of one buffer; the driver may allow less
  std::optional<vulkan::Workgroups> workgroups;     // in place of those that suit the hardware
  std::optional<kernels::vulkan::Variant> variant;  // the shaders' form, one that the hardware supports
  std::string pipeline_cache_folder;                // where compiled shaders are kept; empty: nowhere
  bool copies = false;                              // through host memory even if the device's can be mapped
  uint32_t memory = kHostMemory;                    // DeviceDescription::memory; kHostMemory: it imports none
  // Imports memory even if the driver computes on the CPU. The memory is a file there, and its maker can change its
  // length, or where in it the bytes are. A malicious maker could end this process with that, or make it read other
  // memory.
  bool trusts_makers = false;
};

// Thread-safe. A batch that does not fit the buffers runs in chunks, in turn.
//
// A batch that ends with an error changes nothing. UNAVAILABLE means that the driver has lost the device: all batches
// in flight end so. The next batch restarts the device, or ends with the reason why that failed.
//
// Destruction as for BatchThreads.
class VulkanDevice final : public Device {
 public:
  // Blocks for as long as the driver takes to compile the shaders. The error names the call that failed.
  static absl::StatusOr<std::unique_ptr<VulkanDevice>> Start(std::shared_ptr<vulkan::Instance> instance,
                                                             const vulkan::Hardware& hardware,
                                                             const VulkanDeviceOptions& options);

  kernels::vulkan::Variant variant() const { return context_options_.variant; }
  // Reason why compiled shaders are not kept although they should be.
  absl::Status cache_status() const { return contexts_->cache_status(); }
  const DeviceDescription& description() const override { return description_; }
  void Submit(std::vector<DeviceRow> rows, Done done) override;
  absl::StatusOr<std::shared_ptr<const ImportedMemory>> Import(const MemoryHandle& handle) override;

 private:
  VulkanDevice(std::shared_ptr<vulkan::Instance> instance, const vulkan::Hardware& hardware,
               const VulkanDeviceOptions& options);
  // `*lane` belongs to the thread; null if there is none, before or after.
  BatchOutput Run(const std::vector<DeviceRow>& rows, std::unique_ptr<vulkan::Lane>* lane);
  // Opens a lane of a context that is not known to be lost.
  absl::Status OpenLane(std::unique_ptr<vulkan::Lane>* lane);
  void CloseLane(std::unique_ptr<vulkan::Lane> lane);

  const vulkan::ContextOptions context_options_;
  const vulkan::LaneOptions lane_options_;
  DeviceDescription description_;
  const std::shared_ptr<vulkan::ContextSource> contexts_;
  BatchThreads threads_;  // destroyed first
};

}  // namespace sortition::devices
