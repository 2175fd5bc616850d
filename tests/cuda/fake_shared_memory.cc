// memfd_create and mmap.
#include "tests/cuda/fake_shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "kernels/check.h"

namespace sortition::testing {
namespace {

using devices::cuda::AccessFlags;
using devices::cuda::Result;

const std::string kName = "fake CUDA memory of device ";

void* At(uint64_t address) { return reinterpret_cast<void*>(address); }

// Addresses without memory.
uint64_t MapNothing(uint64_t at, uint64_t bytes) {
  const int fixed = at != 0 ? MAP_FIXED : 0;
  void* const mapped = mmap(At(at), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed, -1, 0);
  SORTITION_CHECK(mapped != MAP_FAILED);
  return reinterpret_cast<uint64_t>(mapped);
}

// Returns the device of a descriptor's memory; -1: not made here.
int DeviceOfFile(int descriptor) {
  char name[256] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  if (readlink(link.c_str(), name, sizeof(name) - 1) < 0) return -1;
  const std::string prefix = "/memfd:" + kName;
  return std::string(name).starts_with(prefix) ? std::atoi(name + prefix.size()) : -1;
}

}  // namespace

Result FakeSharedMemory::Create(int device, uint64_t bytes, Handle* handle) {
  if (bytes == 0 || bytes % kFakeGranularity != 0) return Result::kInvalidValue;
  const int descriptor = memfd_create((kName + std::to_string(device)).c_str(), MFD_CLOEXEC);
  SORTITION_CHECK(descriptor >= 0 && ftruncate(descriptor, static_cast<off_t>(bytes)) == 0);
  *handle = ++last_handle_;
  allocations_[*handle] = {descriptor, device, bytes, true};
  return Result::kSuccess;
}

Result FakeSharedMemory::Release(Handle handle) {
  Named(handle);
  allocations_.at(handle).has_handle = false;
  ForgetIfUnused(handle);
  return Result::kSuccess;
}

const FakeSharedMemory::Allocation& FakeSharedMemory::Named(Handle handle) const {
  const Allocation& allocation = allocations_.at(handle);
  SORTITION_CHECK(allocation.has_handle);
  return allocation;
}

void FakeSharedMemory::ForgetIfUnused(Handle handle) {
  const Allocation& allocation = allocations_.at(handle);
  if (allocation.has_handle || allocation.mappings != 0) return;
  close(allocation.descriptor);
  allocations_.erase(handle);
}

Result FakeSharedMemory::Export(Handle handle, int* descriptor) const {
  *descriptor = dup(Named(handle).descriptor);
  return *descriptor >= 0 ? Result::kSuccess : Result::kInvalidValue;
}

Result FakeSharedMemory::Import(int descriptor, Handle* handle) {
  const int device = DeviceOfFile(descriptor);
  struct stat file = {};
  if (device < 0 || fstat(descriptor, &file) != 0) return Result::kInvalidValue;
  *handle = ++last_handle_;
  const int own = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  SORTITION_CHECK(own >= 0);
  allocations_[*handle] = {own, device, static_cast<uint64_t>(file.st_size), false};
  return Result::kSuccess;
}

Result FakeSharedMemory::Describe(Handle handle, int* device) const {
  *device = Named(handle).device;
  return Result::kSuccess;
}

Result FakeSharedMemory::Reserve(uint64_t bytes, uint64_t* address) {
  if (bytes == 0 || bytes % kFakeGranularity != 0) return Result::kInvalidValue;
  const uint64_t begin = MapNothing(0, bytes + kFakeGranularity);
  *address = (begin + kFakeGranularity - 1) / kFakeGranularity * kFakeGranularity;
  reservations_[*address] = {bytes, begin};
  return Result::kSuccess;
}

FakeSharedMemory::Reservation* FakeSharedMemory::Find(uint64_t address, uint64_t bytes) {
  const auto at = reservations_.find(address);
  SORTITION_CHECK(at != reservations_.end() && at->second.bytes == bytes);
  return &at->second;
}

Result FakeSharedMemory::Free(uint64_t address, uint64_t bytes) {
  const Reservation* const reservation = Find(address, bytes);
  SORTITION_CHECK(reservation->mapped == 0);
  munmap(At(reservation->begin), bytes + kFakeGranularity);
  reservations_.erase(address);
  return Result::kSuccess;
}

Result FakeSharedMemory::Map(uint64_t address, uint64_t bytes, Handle handle) {
  Reservation* const reservation = Find(address, bytes);
  const Allocation& allocation = Named(handle);
  SORTITION_CHECK(reservation->mapped == 0);
  if (bytes > allocation.bytes) return Result::kInvalidValue;
  void* const mapped = mmap(At(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, allocation.descriptor, 0);
  SORTITION_CHECK(mapped == At(address));
  reservation->mapped = handle;
  ++allocations_.at(handle).mappings;
  return Result::kSuccess;
}

Result FakeSharedMemory::Unmap(uint64_t address, uint64_t bytes) {
  Reservation* const reservation = Find(address, bytes);
  SORTITION_CHECK(reservation->mapped != 0);
  MapNothing(address, bytes);
  --allocations_.at(reservation->mapped).mappings;
  ForgetIfUnused(reservation->mapped);
  reservation->mapped = 0;
  reservation->is_readable = false;
  return Result::kSuccess;
}

Result FakeSharedMemory::SetAccess(uint64_t address, uint64_t bytes, int device, AccessFlags access) {
  Reservation* const reservation = Find(address, bytes);
  SORTITION_CHECK(allocations_.at(reservation->mapped).device == device);
  const int protection = access == AccessFlags::kReadWrite ? PROT_READ | PROT_WRITE : PROT_READ;
  SORTITION_CHECK(mprotect(At(address), bytes, protection) == 0);
  reservation->is_readable = true;
  return Result::kSuccess;
}

int FakeSharedMemory::DeviceOf(uint64_t address, uint64_t bytes) const {
  auto after = reservations_.upper_bound(address);
  if (after == reservations_.begin()) return -1;
  const auto& [begin, reservation] = *--after;
  if (!reservation.is_readable || address + bytes > begin + reservation.bytes) return -1;
  return allocations_.at(reservation.mapped).device;
}

uint64_t FakeSharedMemory::CreatedBytes(int device) const {
  uint64_t sum = 0;
  for (const auto& [handle, allocation] : allocations_) {
    if (allocation.is_created && allocation.device == device) sum += allocation.bytes;
  }
  return sum;
}

}  // namespace sortition::testing
