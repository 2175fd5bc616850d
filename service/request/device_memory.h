// Devices and their memory as messages name them.
#pragma once

#include <variant>

#include "devices/imported_memory.h"
#include "service/refusal.h"
#include "sortition/v1/memory.pb.h"

namespace sortition::service {

// Not of a kind that is kNone.
void EncodeIdentity(const devices::MemoryIdentity& identity, v1::DeviceMemory* message);
// kNone where the message names no kind.
devices::MemoryIdentity DecodeIdentity(const v1::DeviceMemory& message);

struct DeviceRegionRequest {
  devices::MemoryIdentity identity;
  devices::MemoryHandle handle;
};
// `descriptor` came with the message and stays its owner's; -1 = none. Thread-safe.
std::variant<DeviceRegionRequest, Refusal> ParseDeviceRegion(const v1::RegisterDeviceRegion& message, int descriptor);

}  // namespace sortition::service
