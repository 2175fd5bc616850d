// Imports memory of a CUDA device that another process allocated.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "devices/cuda/context.h"
#include "devices/cuda/virtual_memory.h"
#include "devices/imported_memory.h"

namespace sortition::devices::cuda {

// As Device::Import, for a device that shares memory. An error leaves the device unchanged.
absl::StatusOr<std::shared_ptr<const ImportedMemory>> ImportMemory(std::shared_ptr<Context> context,
                                                                   const MemoryHandle& handle, uint32_t memory);

// Copies device memory to the host, after the work that the context's default stream already has. Blocks. Thread-safe.
absl::Status ReadMemory(const Api& api, ContextHandle context, DevicePointer from, std::span<std::byte> to);

}  // namespace sortition::devices::cuda
