// Lanes, and contexts that may be lost.
#include "devices/vulkan/vulkan_device.h"

#include <algorithm>
#include <utility>

#include "devices/vulkan/vulkan_memory.h"
#include "kernels/check.h"
#include "kernels/row.h"
#include "kernels/vulkan/shaders.h"

namespace sortition::devices {

using vulkan::Commands;
using vulkan::Lane;

absl::StatusOr<std::unique_ptr<VulkanDevice>> VulkanDevice::Start(std::shared_ptr<vulkan::Instance> instance,
                                                                  const vulkan::Hardware& hardware,
                                                                  const VulkanDeviceOptions& options) {
  std::unique_ptr<VulkanDevice> device(new VulkanDevice(std::move(instance), hardware, options));
  std::unique_ptr<Lane> lane;
  if (absl::Status status = device->OpenLane(&lane); !status.ok()) return status;
  for (uint32_t i = 0; i < options.batches_in_flight; ++i) {
    device->threads_.Add([device = device.get(), lane = std::unique_ptr<Lane>()](
                             const std::vector<DeviceRow>& rows) mutable { return device->Run(rows, &lane); });
  }
  return device;
}

VulkanDevice::VulkanDevice(std::shared_ptr<vulkan::Instance> instance, const vulkan::Hardware& hardware,
                           const VulkanDeviceOptions& options)
    : context_options_{options.workgroups.value_or(vulkan::Workgroups::For(hardware)),
                       options.variant.value_or(hardware.offers), options.pipeline_cache_folder},
      lane_options_{std::min<uint64_t>(options.max_buffer_bytes, hardware.limits.maxStorageBufferRange),
                    options.copies},
      contexts_(std::make_shared<vulkan::ContextSource>(std::move(instance), hardware, context_options_)) {
  SORTITION_CHECK(options.batches_in_flight >= 1);
  SORTITION_CHECK((!variant().int64 || hardware.offers.int64) && (!variant().subgroups || hardware.offers.subgroups));
  description_.name = options.name;
  description_.kind = "vulkan";
  description_.hardware = hardware.name;
  description_.max_batch_rows = options.max_batch_rows;
  description_.batches_in_flight = options.batches_in_flight;
  description_.max_vocabulary =
      std::min(kernels::kMaxVocabulary, kernels::vulkan::MaxVocabulary(context_options_.workgroups.long_row));
  description_.features = kernels::vulkan::kFeatures;
  description_.memory = options.memory;
  if (options.memory != kHostMemory && hardware.imports_memory && (!hardware.is_processor || options.trusts_makers)) {
    description_.identity = {MemoryKind::kVulkan, hardware.device_uuid, hardware.driver_uuid};
  }
}

void VulkanDevice::Submit(std::vector<DeviceRow> rows, Done done) {
  SORTITION_CHECK(!rows.empty() && rows.size() <= description_.max_batch_rows);
  threads_.Submit(std::move(rows), std::move(done));
}

absl::StatusOr<std::shared_ptr<const ImportedMemory>> VulkanDevice::Import(const MemoryHandle& handle) {
  if (description_.identity.kind == MemoryKind::kNone || handle.kind != description_.identity.kind) {
    return Device::Import(handle);
  }
  return vulkan::VulkanMemory::Make(contexts_, handle, description_.memory);
}

absl::Status VulkanDevice::OpenLane(std::unique_ptr<Lane>* lane) {
  lane->reset();
  auto context = contexts_->Get();
  if (!context.ok()) return context.status();
  auto created = Lane::Create(*std::move(context), lane_options_);
  if (!created.ok()) return created.status();
  *lane = *std::move(created);
  return absl::OkStatus();
}

void VulkanDevice::CloseLane(std::unique_ptr<Lane> lane) {
  if (lane->commands().IsDone()) return;
  const Commands* const commands = &lane->commands();
  contexts_->KeepUntilDone(std::shared_ptr<Lane>(std::move(lane)), commands);
}

BatchOutput VulkanDevice::Run(const std::vector<DeviceRow>& rows, std::unique_ptr<Lane>* lane) {
  BatchOutput result;
  if (*lane == nullptr || (*lane)->context().lost()) result.status = OpenLane(lane);
  if (result.status.ok()) result.status = (*lane)->Run(rows, &result.outputs, &result.kernel_nanoseconds);
  if (!result.status.ok() && *lane != nullptr && (*lane)->context().lost()) CloseLane(std::move(*lane));
  return result;
}

}  // namespace sortition::devices
