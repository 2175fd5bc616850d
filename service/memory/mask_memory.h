// Packed masks that are held for later steps, and the bound on their memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace sortition::service {

// Immutable. A step that refers to it holds it, so that it may be replaced or released meanwhile.
struct UploadedMask {
  uint32_t vocabulary = 0;
  std::vector<uint32_t> words;  // ceil(vocabulary / 32), least significant bit first, 1 = allowed
  uint64_t digest = 0;          // MaskDigest(words)
  uint64_t bytes() const { return words.size() * sizeof(uint32_t); }
};

// What a mask adds to the digest of a step's options: of its content alone, so that a retry may send the same mask in
// another way. Not the same in every process.
uint64_t MaskDigest(std::span<const uint32_t> words);

// How many bytes of masks are held, of all streams together. Thread-safe. Masks may outlive it.
class MaskMemory {
 public:
  explicit MaskMemory(uint64_t most) : most_(most) {}
  // Null if there is no room for it.
  std::shared_ptr<const UploadedMask> Hold(UploadedMask mask);
  uint64_t bytes() const { return bytes_->load(std::memory_order_relaxed); }

 private:
  const uint64_t most_;
  const std::shared_ptr<std::atomic<uint64_t>> bytes_ = std::make_shared<std::atomic<uint64_t>>(0);
};

// The packed mask of a row: its own copy of one that came with the step, or an uploaded one, or one that its lender
// keeps for as long as the row runs, or none.
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
  uint64_t digest() const { return uploaded_ != nullptr ? uploaded_->digest : MaskDigest(words()); }
  // There is a mask, and it allows no id below `live_vocabulary`.
  bool AllowsNone(uint32_t live_vocabulary) const;

 private:
  std::vector<uint32_t> own_;
  std::shared_ptr<const UploadedMask> uploaded_;
  std::span<const uint32_t> lent_;
};

}  // namespace sortition::service
