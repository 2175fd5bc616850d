// Memory that this process makes and shares with another one, of a size that neither can change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "service/memory/descriptor.h"

namespace sortition::service {

// Owns a mapping; destruction unmaps it. The memory itself lives as long as anybody has it mapped or open. What lies in
// it is written by another process at any time, also while it is read: read each byte once, and believe none.
class SealedMemory {
 public:
  // What this process may do; whoever has the descriptor may read and write.
  enum class Access { kRead, kReadWrite };

  // `bytes`, 1 to 2^62, rounded up to whole pages, all of them there: what cannot be had fails here and not at the
  // first touch. RESOURCE_EXHAUSTED says what was missing: memory, descriptors or room. Blocks for the time it takes to
  // clear the pages.
  static absl::StatusOr<std::unique_ptr<SealedMemory>> Make(uint64_t bytes, Access access);

  // `bytes` rounded up, as Make does it; at most 2^62.
  static uint64_t WholePages(uint64_t bytes);

  ~SealedMemory();
  SealedMemory(const SealedMemory&) = delete;
  SealedMemory& operator=(const SealedMemory&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Asserts Access::kReadWrite.
  std::byte* data() const;
  // To be passed on. Once.
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
