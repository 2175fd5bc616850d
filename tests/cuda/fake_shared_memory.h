// The fake driver's memory that processes pass to one another: files without a name.
#pragma once

#include <cstdint>
#include <map>

#include "devices/cuda/driver.h"

namespace sortition::testing {

inline constexpr uint64_t kFakeGranularity = 2 << 20;

// Allocations by handles, and the addresses at which they are mapped. A file's name has its memory's device, its length
// the size. Not thread-safe.
class FakeSharedMemory {
 public:
  using Result = devices::cuda::Result;
  using Handle = devices::cuda::AllocationHandle;

  Result Create(int device, uint64_t bytes, Handle* handle);
  Result Release(Handle handle);
  Result Export(Handle handle, int* descriptor) const;
  Result Import(int descriptor, Handle* handle);
  Result Describe(Handle handle, int* device) const;

  Result Reserve(uint64_t bytes, uint64_t* address);
  Result Free(uint64_t address, uint64_t bytes);
  Result Map(uint64_t address, uint64_t bytes, Handle handle);
  Result Unmap(uint64_t address, uint64_t bytes);
  Result SetAccess(uint64_t address, uint64_t bytes, int device, devices::cuda::AccessFlags access);

  // Which device's memory lies there and can be read; -1: none's.
  int DeviceOf(uint64_t address, uint64_t bytes) const;
  // Returns the bytes of allocations that were created here, as long as a handle or a mapping keeps them.
  uint64_t CreatedBytes(int device) const;
  bool IsEmpty() const { return allocations_.empty() && reservations_.empty(); }

 private:
  struct Allocation {
    int descriptor;
    int device;
    uint64_t bytes;
    bool is_created;
    bool has_handle = true;
    int mappings = 0;
  };
  struct Reservation {
    uint64_t bytes;
    uint64_t begin;  // of the host's, which is larger: addresses are multiples of the granularity
    Handle mapped = 0;
    bool is_readable = false;
  };
  Reservation* Find(uint64_t address, uint64_t bytes);
  const Allocation& Named(Handle handle) const;
  void ForgetIfUnused(Handle handle);

  std::map<Handle, Allocation> allocations_;
  std::map<uint64_t, Reservation> reservations_;  // by address
  Handle last_handle_ = 0;
};

}  // namespace sortition::testing
