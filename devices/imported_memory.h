// Device memory that another process allocated and shares: its handle, its identity and access to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"

namespace sortition::devices {

// The number of the host's memory, which the processor addresses.
inline constexpr uint32_t kHostMemory = 0;

// How drivers share memory between processes. Each kind is a file descriptor: it cannot be guessed, and the memory
// lives until the last process has closed and unmapped it.
enum class MemoryKind : uint8_t {
  kNone,
  kCuda,    // cuMemExportToShareableHandle, POSIX file descriptor
  kVulkan,  // vkGetMemoryFdKHR, opaque file descriptor
};

// Lets two processes find out that they use the same device with the same driver.
struct MemoryIdentity {
  MemoryKind kind = MemoryKind::kNone;  // kind that the device imports
  std::string device_uuid;              // 16 bytes
  std::string driver_uuid;              // kVulkan: 16 bytes
  bool operator==(const MemoryIdentity&) const = default;
};

// An allocation, as the process that made it describes it.
struct MemoryHandle {
  MemoryKind kind = MemoryKind::kNone;
  int descriptor = -1;       // stays its owner's
  uint64_t bytes = 0;        // size of the whole allocation, by its owner's driver
  uint32_t memory_type = 0;  // kVulkan: its index
};

// Imported memory. Immutable, except its content, which the other process may write at any time. Thread-safe.
// Destruction, on any thread, releases it.
class ImportedMemory {
 public:
  virtual ~ImportedMemory() = default;
  ImportedMemory(const ImportedMemory&) = delete;
  ImportedMemory& operator=(const ImportedMemory&) = delete;

  // Device addresses of the bytes, used by segments. The host cannot read there.
  std::span<const std::byte> bytes() const { return bytes_; }
  // DeviceDescription::memory of the devices that can read it.
  uint32_t memory() const { return memory_; }
  // Copies `to.size()` bytes from `offset` to the host; they must lie within. Blocks.
  virtual absl::Status Read(uint64_t offset, std::span<std::byte> to) const = 0;

 protected:
  ImportedMemory(std::span<const std::byte> bytes, uint32_t memory) : bytes_(bytes), memory_(memory) {}

 private:
  const std::span<const std::byte> bytes_;
  const uint32_t memory_;
};

}  // namespace sortition::devices
