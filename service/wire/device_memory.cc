// Names of devices, and validation of RegisterDeviceRegion.
#include "service/wire/device_memory.h"

#include "kernels/check.h"
#include "service/checks.h"

namespace sortition::service {

using devices::MemoryKind;

void EncodeIdentity(const devices::MemoryIdentity& identity, v1::DeviceMemory* message) {
  switch (identity.kind) {
    case MemoryKind::kCuda:
      message->mutable_cuda()->set_device_uuid(identity.device_uuid);
      return;
    case MemoryKind::kVulkan:
      message->mutable_vulkan()->set_device_uuid(identity.device_uuid);
      message->mutable_vulkan()->set_driver_uuid(identity.driver_uuid);
      return;
    case MemoryKind::kNone:
      CheckFailed("a device whose memory has a name", __FILE__, __LINE__);
  }
}

devices::MemoryIdentity DecodeIdentity(const v1::DeviceMemory& message) {
  switch (message.kind_case()) {
    case v1::DeviceMemory::kCuda:
      return {MemoryKind::kCuda, message.cuda().device_uuid(), {}};
    case v1::DeviceMemory::kVulkan:
      return {MemoryKind::kVulkan, message.vulkan().device_uuid(), message.vulkan().driver_uuid()};
    case v1::DeviceMemory::KIND_NOT_SET:
      break;
  }
  return {};
}

std::variant<DeviceRegionRequest, Refusal> ParseDeviceRegion(const v1::RegisterDeviceRegion& message, int descriptor) {
  DeviceRegionRequest request;
  request.identity = DecodeIdentity(message.device());
  if (request.identity.kind == MemoryKind::kNone) return MissingField("register_device_region.device.kind");
  if (request.identity.kind != MemoryKind::kVulkan && message.vulkan_memory_type() != 0) {
    return Refusal{Reason::kContradiction, "register_device_region.vulkan_memory_type", "0",
                   "memory types are Vulkan's"};
  }
  if (descriptor < 0) {
    return Refusal{Reason::kMissingField, "register_device_region", "",
                   "the packet has no descriptor of the memory (SCM_RIGHTS)"};
  }
  request.handle = {request.identity.kind, descriptor, message.bytes(), message.vulkan_memory_type()};
  return request;
}

}  // namespace sortition::service
