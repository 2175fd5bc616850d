// Device memory that processes share: allocations, and the addresses at which a process sees them.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "devices/cuda/api.h"
#include "devices/cuda/hardware.h"

namespace sortition::devices::cuda {

// A reference to an allocation: the memory lives until its last reference, descriptor and mapping is gone in all
// processes. The Api outlives it. Not thread-safe.
class Allocation {
 public:
  // `bytes`: a multiple of Granularity. RESOURCE_EXHAUSTED if the device has too little memory.
  static absl::StatusOr<Allocation> Create(const Api& api, const Hardware& hardware, uint64_t bytes);
  // Imports the allocation that the descriptor was exported from; the caller keeps the descriptor. INVALID_ARGUMENT if
  // it is not memory of this device.
  static absl::StatusOr<Allocation> Import(const Api& api, const Hardware& hardware, int descriptor);
  ~Allocation() { Release(); }
  Allocation(Allocation&& other) noexcept;
  Allocation& operator=(Allocation&&) = delete;

  // Returns a descriptor, owned by the caller, which child processes do not inherit.
  absl::StatusOr<int> Export() const;
  AllocationHandle handle() const { return handle_; }

 private:
  Allocation(const Api& api, AllocationHandle handle) : api_(&api), handle_(handle) {}
  void Release();

  const Api* api_;  // null: moved from
  AllocationHandle handle_;
};

// Returns the unit in which the device allocates memory that can be shared.
absl::StatusOr<uint64_t> Granularity(const Api& api, const Hardware& hardware);

// Addresses at which the device, in this process, sees an allocation. Destruction releases them; nothing may use them
// then. Immutable.
class Mapping {
 public:
  // Maps the first `bytes`, a multiple of Granularity. INVALID_ARGUMENT if the allocation is smaller. Memory that the
  // device only reads is write-protected if the driver supports it.
  static absl::StatusOr<std::unique_ptr<Mapping>> Create(const Api& api, const Hardware& hardware,
                                                         const Allocation& allocation, uint64_t bytes,
                                                         AccessFlags access);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  DevicePointer address() const { return address_; }

 private:
  Mapping(const Api& api, uint64_t bytes) : api_(api), bytes_(bytes) {}
  absl::Status Open(const Hardware& hardware, const Allocation& allocation, AccessFlags access);

  const Api api_;
  const uint64_t bytes_;
  DevicePointer address_ = 0;
  bool is_mapped_ = false;
};

}  // namespace sortition::devices::cuda
