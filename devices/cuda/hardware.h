// The CUDA devices of a machine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "devices/cuda/api.h"
#include "devices/imported_memory.h"

namespace sortition::devices::cuda {

struct Hardware {
  DeviceHandle handle = 0;
  uint32_t index = 0;  // in the driver's order, which CUDA_VISIBLE_DEVICES changes
  std::string name;
  std::string uuid;        // "GPU-…"; of an instance of a divided GPU nvidia-smi prints "MIG-…" and the same digits
  std::string uuid_bytes;  // the same, 16 of them
  uint32_t multiprocessors = 1;
  uint32_t capability = 0;  // 90: compute capability 9.0
  uint64_t memory_bytes = 0;
  bool shares_memory = false;  // with other processes, by file descriptors
};

// What processes call the device's memory if they can share it; kNone if not.
MemoryIdentity IdentityOf(const Hardware& hardware);

// Devices of compute capability 8.0 or later.
absl::StatusOr<std::vector<Hardware>> FindHardware(const Api& api);
// The one at that place in the driver's order. NOT_FOUND if there is no such device.
absl::StatusOr<Hardware> FindHardware(const Api& api, int index);

// Those that `wanted` means: all if it is empty, the one at that index if it is a number, otherwise those whose UUID
// begins with it ("GPU-" or "MIG-" may stand before it or not) or whose name has it, whatever the case.
std::vector<Hardware> Matching(const std::string& wanted, const std::vector<Hardware>& hardware);

}  // namespace sortition::devices::cuda
