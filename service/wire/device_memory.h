// Translates devices and their memory to and from messages.
#pragma once

#include <variant>

#include "devices/imported_memory.h"
#include "service/refusal.h"
#include "sortition/v1/memory.pb.h"

namespace sortition::service {

// Sets `*message` to the name of a device. `identity.kind` is not kNone.
void EncodeIdentity(const devices::MemoryIdentity& identity, v1::DeviceMemory* message);
// Returns the device that a message names; kind kNone if it names none.
devices::MemoryIdentity DecodeIdentity(const v1::DeviceMemory& message);

struct DeviceRegionRequest {
  devices::MemoryIdentity identity;
  devices::MemoryHandle handle;
};
// Validates a request. `descriptor` came with the message; -1: none did. The caller keeps its ownership. Thread-safe.
std::variant<DeviceRegionRequest, Refusal> ParseDeviceRegion(const v1::RegisterDeviceRegion& message, int descriptor);

}  // namespace sortition::service
