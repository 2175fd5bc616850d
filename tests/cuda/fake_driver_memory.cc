// The driver's memory functions, over the host's memory. Copies are made at once.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <mutex>

#include "kernels/check.h"
#include "tests/cuda/fake_driver_state.h"

namespace sortition::testing::fake_cuda {
namespace {

constexpr std::byte kNoise{0xcd};

uint64_t AllocatedBytes(int device) {
  uint64_t sum = state->shared.CreatedBytes(device);
  for (const auto& [address, allocation] : state->memory) sum += allocation.device == device ? allocation.bytes : 0;
  return sum;
}

// True if `bytes` from the address lie in one allocation.
bool IsOnDevice(uint64_t address, uint64_t bytes) {
  if (state->shared.DeviceOf(address, bytes) >= 0) return true;
  auto after = state->memory.upper_bound(address);
  if (after == state->memory.begin()) return false;
  const auto& [begin, allocation] = *--after;
  return address + bytes <= begin + allocation.bytes;
}

bool IsPinned(uint64_t address) {
  const auto after = state->pinned.upper_bound(address);
  if (after == state->pinned.begin()) return false;
  const auto& [begin, bytes] = *std::prev(after);
  return address < begin + bytes;
}

Result AllocateHere(uint64_t bytes, DevicePointer* memory) {
  SORTITION_CHECK(!current_contexts.empty());
  uint64_t address = 0;
  const Result result = Allocate(bytes, DeviceOf(current_contexts.back()), false, &address);
  *memory = address;
  return result;
}

Result Set(uint64_t to, unsigned char value, uint64_t bytes) {
  SORTITION_CHECK(IsOnDevice(to, bytes));
  std::memset(reinterpret_cast<void*>(to), value, bytes);
  return Result::kSuccess;
}

}  // namespace

Result Allocate(uint64_t bytes, int device, bool is_tests, uint64_t* address) {
  if (AllocatedBytes(device) + bytes > state->options.memory_bytes) return Result::kOutOfMemory;
  void* const memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(memory, int(kNoise), bytes);
  *address = reinterpret_cast<uint64_t>(memory);
  state->memory[*address] = {bytes, device, is_tests};
  return Result::kSuccess;
}

Result Free(uint64_t address) {
  const auto found = state->memory.find(address);
  if (found == state->memory.end()) return Result::kInvalidValue;
  // Memory that a stream still waits for must not be freed.
  const uint64_t end = address + found->second.bytes;
  std::erase_if(state->awaited_values, [&](const auto& awaited) {
    const DevicePointer word = awaited.second.first;
    return address <= word && word < end;
  });
  state->memory.erase(found);
  std::free(reinterpret_cast<void*>(address));
  return Result::kSuccess;
}

Result FakeMemAlloc(DevicePointer* memory, size_t bytes) {
  return Call("MemAlloc", [&] { return AllocateHere(bytes, memory); });
}
Result FakeMemFree(DevicePointer memory) {
  WaitForAll();
  const std::lock_guard lock(state->mutex);
  if (const Result before = Conflict("MemFree"); before != kOk) return before;
  ++state->calls["MemFree"];
  const Result freed = Free(memory);
  return freed == kOk ? AfterKernels() : freed;
}
Result FakeMemAllocAsync(DevicePointer* memory, size_t bytes, StreamHandle) {
  return Call("MemAllocAsync", [&] {
    if (!state->options.has_memory_pools) return Result::kNotSupported;
    return AllocateHere(bytes, memory);
  });
}
Result FakeMemFreeAsync(DevicePointer memory, StreamHandle) {
  const std::lock_guard lock(state->mutex);
  return Free(memory);
}
Result FakeMemHostAlloc(void** memory, size_t bytes, unsigned) {
  return Call("MemHostAlloc", [&] {
    *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    state->pinned[reinterpret_cast<uint64_t>(*memory)] = bytes;
    return kOk;
  });
}
Result FakeMemFreeHost(void* memory) {
  const std::lock_guard lock(state->mutex);
  if (const Result before = Conflict("MemFreeHost"); before != kOk) return before;
  SORTITION_CHECK(state->pinned.erase(reinterpret_cast<uint64_t>(memory)) == 1);
  std::free(memory);
  return kOk;
}
Result FakeMemHostRegister(void* memory, size_t bytes, unsigned flags) {
  SORTITION_CHECK(reinterpret_cast<uintptr_t>(memory) % 4096 == 0 && bytes > 0 && flags == kHostRegisterDeviceMap);
  return Call("MemHostRegister", [&] {
    SORTITION_CHECK(state->registered.insert(memory).second);
    return kOk;
  });
}
Result FakeMemHostUnregister(void* memory) {
  const std::lock_guard lock(state->mutex);
  if (const Result before = Conflict("MemHostUnregister"); before != kOk) return before;
  SORTITION_CHECK(state->registered.erase(memory) == 1);
  return kOk;
}
Result FakeMemHostGetDevicePointer(DevicePointer* address, void* memory, unsigned) {
  return Call("MemHostGetDevicePointer", [&] {
    SORTITION_CHECK(state->registered.contains(memory));
    *address = reinterpret_cast<DevicePointer>(memory);
    return kOk;
  });
}
Result FakeMemcpyHtoDAsync(DevicePointer to, const void* from, size_t bytes, StreamHandle stream) {
  return Put("MemcpyHtoDAsync", stream, [=] {
    SORTITION_CHECK(IsOnDevice(to, bytes));
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);
    state->uploaded_bytes += bytes;
    return kOk;
  });
}
Result FakeMemcpyDtoDAsync(DevicePointer to, DevicePointer from, size_t bytes, StreamHandle stream) {
  return Put("MemcpyDtoDAsync", stream, [=] {
    SORTITION_CHECK(IsOnDevice(to, bytes) && IsOnDevice(from, bytes));
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    return kOk;
  });
}
Result FakeMemcpy2DAsync(const Copy2D* copy, StreamHandle stream) {
  return Put("Memcpy2DAsync", stream, [copy = *copy] {
    const auto& [from, to, width, height] = copy;
    SORTITION_CHECK(from.type == MemoryType::kDevice && to.type == MemoryType::kDevice);
    SORTITION_CHECK(width >= 1 && height >= 1 && std::min(from.pitch, to.pitch) >= width);
    for (size_t line = 0; line < height; ++line) {
      const uint64_t source = from.device + line * from.pitch;
      const uint64_t target = to.device + line * to.pitch;
      SORTITION_CHECK(IsOnDevice(source, width) && IsOnDevice(target, width));
      std::memcpy(reinterpret_cast<void*>(target), reinterpret_cast<const void*>(source), width);
    }
    return kOk;
  });
}
Result FakeMemcpyDtoHAsync(void* to, DevicePointer from, size_t bytes, StreamHandle stream) {
  return Put("MemcpyDtoHAsync", stream, [=] {
    SORTITION_CHECK(IsOnDevice(from, bytes));
    state->downloaded_bytes += bytes;
    std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
    return kOk;
  });
}
Result FakeMemsetD8Async(DevicePointer to, unsigned char value, size_t bytes, StreamHandle stream) {
  return Put("MemsetD8Async", stream, [=] { return Set(to, value, bytes); });
}
Result FakePointerGetAttribute(void* value, PointerAttribute attribute, DevicePointer pointer) {
  return Call("PointerGetAttribute", [&] {
    if (!IsOnDevice(pointer, 1) && !IsPinned(pointer)) return Result::kInvalidValue;
    if (attribute == PointerAttribute::kMemoryType) {
      *static_cast<MemoryType*>(value) = IsPinned(pointer) ? MemoryType::kHost : MemoryType::kDevice;
      return kOk;
    }
    const int shared = state->shared.DeviceOf(pointer, 1);
    int device = 0;  // pinned memory belongs to the first device
    if (!IsPinned(pointer)) device = shared >= 0 ? shared : (--state->memory.upper_bound(pointer))->second.device;
    if (attribute == PointerAttribute::kDeviceOrdinal) *static_cast<int*>(value) = device;
    return kOk;
  });
}

Result FakeMemcpyDtoH(void* to, DevicePointer from, size_t bytes) {
  return Call("MemcpyDtoH", [&] {
    SORTITION_CHECK(!current_contexts.empty() && IsOnDevice(from, bytes));
    std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
    return kOk;
  });
}
Result FakeMemGetAllocationGranularity(size_t* granularity, const AllocationProperties*, int option) {
  return Call("MemGetAllocationGranularity", [&] {
    SORTITION_CHECK(option == kMinimumGranularity);
    *granularity = kFakeGranularity;
    return kOk;
  });
}
Result FakeMemCreate(AllocationHandle* allocation, size_t bytes, const AllocationProperties* properties,
                     unsigned long long flags) {
  return Call("MemCreate", [&] {
    SORTITION_CHECK(flags == 0 && properties->type == AllocationType::kPinned);
    SORTITION_CHECK(properties->handle_types == ShareableHandleType::kFileDescriptor);
    SORTITION_CHECK(properties->location.type == LocationType::kDevice);
    const int device = properties->location.id;
    if (AllocatedBytes(device) + bytes > state->options.memory_bytes) return Result::kOutOfMemory;
    return state->shared.Create(device, bytes, allocation);
  });
}
Result FakeMemRelease(AllocationHandle allocation) {
  const std::lock_guard lock(state->mutex);
  return state->shared.Release(allocation);
}
Result FakeMemExportToShareableHandle(void* descriptor, AllocationHandle allocation, ShareableHandleType,
                                      unsigned long long flags) {
  return Call("MemExportToShareableHandle", [&] {
    SORTITION_CHECK(flags == 0);
    return state->shared.Export(allocation, static_cast<int*>(descriptor));
  });
}
Result FakeMemImportFromShareableHandle(AllocationHandle* allocation, void* descriptor, ShareableHandleType) {
  return Call("MemImportFromShareableHandle", [&] {
    return state->shared.Import(static_cast<int>(reinterpret_cast<intptr_t>(descriptor)), allocation);
  });
}
Result FakeMemGetAllocationPropertiesFromHandle(AllocationProperties* properties, AllocationHandle allocation) {
  return Call("MemGetAllocationPropertiesFromHandle",
              [&] { return state->shared.Describe(allocation, &properties->location.id); });
}
Result FakeMemAddressReserve(DevicePointer* address, size_t bytes, size_t alignment, DevicePointer wanted,
                             unsigned long long flags) {
  return Call("MemAddressReserve", [&] {
    SORTITION_CHECK(alignment == 0 && wanted == 0 && flags == 0);
    uint64_t reserved = 0;
    const Result result = state->shared.Reserve(bytes, &reserved);
    *address = reserved;
    return result;
  });
}
Result FakeMemAddressFree(DevicePointer address, size_t bytes) {
  const std::lock_guard lock(state->mutex);
  return state->shared.Free(address, bytes);
}
Result FakeMemMap(DevicePointer address, size_t bytes, size_t offset, AllocationHandle allocation,
                  unsigned long long flags) {
  return Call("MemMap", [&] {
    SORTITION_CHECK(offset == 0 && flags == 0);
    return state->shared.Map(address, bytes, allocation);
  });
}
Result FakeMemUnmap(DevicePointer address, size_t bytes) {
  const std::lock_guard lock(state->mutex);
  return state->shared.Unmap(address, bytes);
}
Result FakeMemSetAccess(DevicePointer address, size_t bytes, const AccessDescription* access, size_t count) {
  return Call("MemSetAccess", [&] {
    SORTITION_CHECK(count == 1 && access->location.type == LocationType::kDevice);
    if (access->flags == AccessFlags::kRead && state->options.read_access != kOk) return state->options.read_access;
    return state->shared.SetAccess(address, bytes, access->location.id, access->flags);
  });
}

}  // namespace sortition::testing::fake_cuda
