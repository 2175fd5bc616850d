// Device memory that processes pass to one another: allocations, and the addresses at which they are seen.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "devices/cuda/api.h"
#include "devices/cuda/hardware.h"

namespace sortition::devices::cuda {

// A holder of an allocation: the memory lives until the last holder, descriptor and mapping is gone, in whatever
// process. Outlived by its Api. Not thread-safe.
class Allocation {
 public:
  // `bytes`: a multiple of Granularity. RESOURCE_EXHAUSTED where the device has not as much.
  static absl::StatusOr<Allocation> Create(const Api& api, const Hardware& hardware, uint64_t bytes);
  // What the descriptor, which stays the caller's, was exported from. INVALID_ARGUMENT if that is not memory of this
  // device.
  static absl::StatusOr<Allocation> Import(const Api& api, const Hardware& hardware, int descriptor);
  ~Allocation() { Release(); }
  Allocation(Allocation&& other) noexcept;
  Allocation& operator=(Allocation&&) = delete;

  // A descriptor of it, the caller's, that children of this process do not get.
  absl::StatusOr<int> Export() const;
  AllocationHandle handle() const { return handle_; }

 private:
  Allocation(const Api& api, AllocationHandle handle) : api_(&api), handle_(handle) {}
  void Release();

  const Api* api_;  // null: moved from
  AllocationHandle handle_;
};

// Of whose multiples the device allocates memory that can be shared.
absl::StatusOr<uint64_t> Granularity(const Api& api, const Hardware& hardware);

// Addresses at which the device, in this process, sees an allocation. They are given back when this is destroyed;
// nothing must use them then. Immutable.
class Mapping {
 public:
  // The first `bytes` of it, a multiple of Granularity. INVALID_ARGUMENT if it has not as many. Memory that the device
  // is only to read is protected from it where the driver can do that.
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
