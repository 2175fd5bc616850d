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
  std::string uuid;  // "GPU-…"; for an instance of a divided GPU, nvidia-smi prints "MIG-…" and the same digits
  std::string uuid_bytes;  // the same as 16 raw bytes
  uint32_t multiprocessors = 1;
  uint32_t capability = 0;  // 90: compute capability 9.0
  uint64_t memory_bytes = 0;
  bool shares_memory = false;     // with other processes, by file descriptors
  bool has_memory_pools = false;  // some virtual GPUs have none
};

// Identity of the device's memory for sharing between processes; kNone if it cannot be shared.
MemoryIdentity IdentityOf(const Hardware& hardware);

// A device that these kernels do not run on.
struct UnusableDevice {
  uint32_t index = 0;  // in the driver's order
  absl::Status why;    // FAILED_PRECONDITION: its compute capability; another code: the driver does not describe it
};

// Returns the devices of compute capability 8.0 or later. Adds the others to `unusable`, if that is not null. Fails if
// the driver does not count its devices.
absl::StatusOr<std::vector<Hardware>> FindHardware(const Api& api, std::vector<UnusableDevice>* unusable = nullptr);
// Returns the device at that place in the driver's order; NOT_FOUND where there is none, or why it is unusable.
absl::StatusOr<Hardware> FindHardware(const Api& api, int index);

// Selects devices by `wanted`: all if it is empty; the one at that index if it is a number; otherwise those whose UUID
// begins with it, with or without "GPU-" or "MIG-", or whose name contains it. Ignores case.
std::vector<Hardware> Matching(const std::string& wanted, const std::vector<Hardware>& hardware);

}  // namespace sortition::devices::cuda
