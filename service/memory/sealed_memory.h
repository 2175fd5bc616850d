// Memory that this process allocates and shares with another one; neither can change its size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "service/memory/descriptor.h"

namespace sortition::service {

// Owns a mapping; destruction unmaps it. The memory itself lives until the last process has closed and unmapped it. The
// other process may write to it at any time, also during a read: read each byte once and trust none.
class SealedMemory {
 public:
  // Access of this process; holders of the descriptor may read and write.
  enum class Access { kRead, kReadWrite };

  // Allocates `bytes`, 1 to 2^62, rounded up to whole pages. All pages are taken at once, so a lack of memory fails
  // here and not at the first access. RESOURCE_EXHAUSTED names the lack: memory, descriptors or room. Blocks while the
  // pages are cleared.
  static absl::StatusOr<std::unique_ptr<SealedMemory>> Make(uint64_t bytes, Access access);

  // Returns `bytes` rounded up as Make does; at most 2^62.
  static uint64_t WholePages(uint64_t bytes);

  ~SealedMemory();
  SealedMemory(const SealedMemory&) = delete;
  SealedMemory& operator=(const SealedMemory&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Requires Access::kReadWrite.
  std::byte* data() const;
  // Gives the descriptor away, once.
  Descriptor TakeDescriptor() { return std::move(descriptor_); }

 private:
  SealedMemory(std::byte* data, uint64_t size, Access access, Descriptor descriptor)
      : data_(data), size_(size), access_(access), descriptor_(std::move(descriptor)) {}

  std::byte* const data_;
  const uint64_t size_;
  const Access access_;
  Descriptor descriptor_;
};

}  // namespace sortition::service
