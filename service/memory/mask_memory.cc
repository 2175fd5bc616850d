// Counts the memory of masks.
#include "service/memory/mask_memory.h"

namespace sortition::service {

std::shared_ptr<const PackedMask> MaskMemory::Hold(PackedMask mask) {
  const uint64_t bytes = mask.bytes();
  if (bytes_->fetch_add(bytes, std::memory_order_relaxed) + bytes > most_) {
    bytes_->fetch_sub(bytes, std::memory_order_relaxed);
    return nullptr;
  }
  return {new PackedMask(std::move(mask)), [counted = bytes_, bytes](const PackedMask* held) {
            delete held;
            counted->fetch_sub(bytes, std::memory_order_relaxed);
          }};
}

bool RowMaskBits::AllowsNone(uint32_t live_vocabulary) const {
  const std::span<const uint32_t> bits = words();
  if (bits.empty()) return false;
  const uint32_t whole = live_vocabulary / 32;
  for (uint32_t i = 0; i < whole; ++i) {
    if (bits[i] != 0) return false;
  }
  return live_vocabulary % 32 == 0 || (bits[whole] & ((1u << live_vocabulary % 32) - 1)) == 0;
}

}  // namespace sortition::service
