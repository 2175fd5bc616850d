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
struct UploadedMask {
  uint32_t vocabulary = 0;
  std::vector<uint32_t> words;  // ceil(vocabulary / 32), least significant bit first, 1 = allowed
  uint64_t bytes() const { return words.size() * sizeof(uint32_t); }
};

// Counts the bytes of uploaded masks, of all streams together. Thread-safe. Masks may outlive it.
class MaskMemory {
 public:
  explicit MaskMemory(uint64_t most) : most_(most) {}
  // Returns null if there is no room.
  std::shared_ptr<const UploadedMask> Hold(UploadedMask mask);
  uint64_t bytes() const { return bytes_->load(std::memory_order_relaxed); }

 private:
  const uint64_t most_;
  const std::shared_ptr<std::atomic<uint64_t>> bytes_ = std::make_shared<std::atomic<uint64_t>>(0);
};

// The packed mask of a row: a copy that arrived with the step, an uploaded mask, a mask borrowed for as long as the row
// runs, or none.
class RowMaskBits {
 public:
  RowMaskBits() = default;
  explicit RowMaskBits(std::vector<uint32_t> words) : own_(std::move(words)) {}
  explicit RowMaskBits(std::shared_ptr<const UploadedMask> uploaded) : uploaded_(std::move(uploaded)) {}

  static RowMaskBits Lent(std::span<const uint32_t> words) {
    RowMaskBits bits;
    bits.lent_ = words;
    return bits;
  }

  // Empty if there is no mask.
  std::span<const uint32_t> words() const {
    if (uploaded_ != nullptr) return uploaded_->words;
    return lent_.empty() ? std::span<const uint32_t>(own_) : lent_;
  }
  // Returns true if there is a mask and it allows no token below `live_vocabulary`.
  bool AllowsNone(uint32_t live_vocabulary) const;

 private:
  std::vector<uint32_t> own_;
  std::shared_ptr<const UploadedMask> uploaded_;
  std::span<const uint32_t> lent_;
};

}  // namespace sortition::service
