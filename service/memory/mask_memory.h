// Packed masks that are kept for later steps, and the bound on their memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace sortition::service {

// Immutable. A step that uses a mask holds a reference, so the mask may be replaced or released meanwhile.
struct PackedMask {
  uint32_t vocabulary = 0;
  std::vector<uint32_t> words;  // ceil(vocabulary / 32), least significant bit first, 1 = allowed
  uint64_t bytes() const { return words.size() * sizeof(uint32_t); }
};

// Counts the bytes of uploaded masks, of all streams together. Thread-safe. Masks may outlive it.
class MaskMemory {
 public:
  explicit MaskMemory(uint64_t most) : most_(most) {}
  // Returns null if there is no room.
  std::shared_ptr<const PackedMask> Hold(PackedMask mask);
  uint64_t bytes() const { return bytes_->load(std::memory_order_relaxed); }

 private:
  const uint64_t most_;
  const std::shared_ptr<std::atomic<uint64_t>> bytes_ = std::make_shared<std::atomic<uint64_t>>(0);
};

// The packed mask of a row: one that its step brought or that was uploaded before, a mask borrowed for as long as the
// row runs, or none. Copies share it.
class RowMaskBits {
 public:
  RowMaskBits() = default;
  explicit RowMaskBits(std::shared_ptr<const PackedMask> mask) : mask_(std::move(mask)) {}

  static RowMaskBits Lent(std::span<const uint32_t> words) {
    RowMaskBits bits;
    bits.lent_ = words;
    return bits;
  }

  // Empty if there is no mask.
  std::span<const uint32_t> words() const { return mask_ != nullptr ? mask_->words : lent_; }
  // Returns true if there is a mask and it allows no token below `live_vocabulary`.
  bool AllowsNone(uint32_t live_vocabulary) const;

 private:
  std::shared_ptr<const PackedMask> mask_;
  std::span<const uint32_t> lent_;
};

}  // namespace sortition::service
