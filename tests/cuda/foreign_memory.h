// Memory of the fake driver's device as another process would make it and write to it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

#include "devices/cuda/virtual_memory.h"
#include "devices/device.h"
#include "tests/cuda/fake_driver.h"

namespace sortition::testing {

class ForeignMemory {
 public:
  explicit ForeignMemory(const FakeCudaDriver& driver, uint64_t bytes = 8 << 20, size_t device = 0)
      : api_(driver.api()), bytes_(bytes) {
    const auto hardware = devices::cuda::FindHardware(api_)->at(device);
    const auto allocation = devices::cuda::Allocation::Create(api_, hardware, bytes);
    if (!allocation.ok()) ADD_FAILURE() << allocation.status();
    mapping_ =
        *devices::cuda::Mapping::Create(api_, hardware, *allocation, bytes, devices::cuda::AccessFlags::kReadWrite);
    descriptor_ = *allocation->Export();
  }
  ~ForeignMemory() { close(descriptor_); }
  ForeignMemory(const ForeignMemory&) = delete;
  ForeignMemory& operator=(const ForeignMemory&) = delete;

  devices::MemoryHandle handle() const {
    return {.kind = devices::MemoryKind::kCuda, .descriptor = descriptor_, .bytes = bytes_};
  }
  // Returns the maker's address of the memory.
  std::byte* data() const { return reinterpret_cast<std::byte*>(mapping_->address()); }

 private:
  const devices::cuda::Api api_;
  const uint64_t bytes_;
  std::unique_ptr<devices::cuda::Mapping> mapping_;
  int descriptor_ = -1;
};

// A row with logits that the maker has copied to `offset`; it names them by `imported`.
inline devices::DeviceRow RowIn(const devices::ImportedMemory& imported, const ForeignMemory& memory, uint64_t offset,
                                const std::vector<std::byte>& logits, const kernels::RowRequest& request) {
  std::memcpy(memory.data() + offset, logits.data(), logits.size());
  devices::DeviceRow row;
  row.request = request;
  row.segments.push_back({imported.bytes().data() + offset, logits.size()});
  row.memory = imported.memory();
  row.imported = &imported;
  return row;
}

// Returns the number of descriptors of this process.
inline int OpenDescriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

}  // namespace sortition::testing
