// Fake memory of a fake device: a descriptor that may be passed from process to process, and that the host can map.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "devices/imported_memory.h"

namespace sortition::testing {

// Imports a handle for a FakeDevice: maps its descriptor, which SampleByReference reads. Returns INVALID_ARGUMENT if no
// file of that many bytes is behind it. `read` is called first by every Read, which fails with its status if that is an
// error.
absl::StatusOr<std::shared_ptr<const devices::ImportedMemory>> ImportFakeMemory(
    const devices::MemoryHandle& handle, uint32_t memory, std::function<absl::Status()> read = nullptr);

// The memory of its maker: a mapping for writing, and the descriptor. `identity` is its device's.
class FakeCardMemory {
 public:
  explicit FakeCardMemory(uint64_t bytes);
  ~FakeCardMemory();
  FakeCardMemory(const FakeCardMemory&) = delete;
  FakeCardMemory& operator=(const FakeCardMemory&) = delete;

  static devices::MemoryIdentity Identity();
  devices::MemoryHandle handle() const { return {devices::MemoryKind::kCuda, descriptor_, bytes_, 0}; }
  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  const uint64_t bytes_;
  const int descriptor_;
  std::byte* const data_;
};

}  // namespace sortition::testing
