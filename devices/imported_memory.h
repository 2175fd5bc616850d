// Device memory that another process made and passed on: how it is named, and what is done with it here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"

namespace sortition::devices {

// Of memories: what the processor addresses.
inline constexpr uint32_t kHostMemory = 0;

// How drivers pass memory from process to process. Each is a file descriptor: it cannot be guessed, and the memory
// lives until the last process has closed and unmapped it, whoever made it.
enum class MemoryKind : uint8_t {
  kNone,
  kCuda,    // cuMemExportToShareableHandle, POSIX file descriptor
  kVulkan,  // vkGetMemoryFdKHR, opaque file descriptor
};

// By what processes find that they mean the same device, and the same driver of it.
struct MemoryIdentity {
  MemoryKind kind = MemoryKind::kNone;  // that the device takes
  std::string device_uuid;              // 16 bytes
  std::string driver_uuid;              // kVulkan: 16 bytes
  bool operator==(const MemoryIdentity&) const = default;
};

// An allocation, as its maker describes it.
struct MemoryHandle {
  MemoryKind kind = MemoryKind::kNone;
  int descriptor = -1;       // stays its owner's
  uint64_t bytes = 0;        // of the whole allocation, as its maker's driver has it
  uint32_t memory_type = 0;  // kVulkan: its index
};

// Immutable but for its content, which the other process may write at any time. Thread-safe. What was imported is given
// back when it is destroyed; on any thread.
class ImportedMemory {
 public:
  virtual ~ImportedMemory() = default;
  ImportedMemory(const ImportedMemory&) = delete;
  ImportedMemory& operator=(const ImportedMemory&) = delete;

  // By these addresses segments name its bytes. They are the device's; nothing on the host is there.
  std::span<const std::byte> bytes() const { return bytes_; }
  // DeviceDescription::memory of the devices that read it.
  uint32_t memory() const { return memory_; }
  // Copies `to.size()` bytes from `offset` on, which lie within, to the host. Blocks.
  virtual absl::Status Read(uint64_t offset, std::span<std::byte> to) const = 0;

 protected:
  ImportedMemory(std::span<const std::byte> bytes, uint32_t memory) : bytes_(bytes), memory_(memory) {}

 private:
  const std::span<const std::byte> bytes_;
  const uint32_t memory_;
};

}  // namespace sortition::devices
