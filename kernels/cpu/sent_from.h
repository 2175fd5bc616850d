// Selection by key without keys: compares the elements of a tensor as they lie there.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/law/law.h"

namespace sortition::kernels::cpu {

// The smallest number that, sent as a logit, has a key >= `key`: for numbers x below 65504, NaN excluded, x >=
// SentFrom(key) says what law::Key(law::Canonical(x)) >= key says. key >= 1. Infinite if no logit has such a key.
inline float SentFrom(uint32_t key) {
  constexpr float kSmallest = 0x1p-60f;  // smaller magnitudes are +0
  if (key >= law::Key(0x477fe000u)) return std::numeric_limits<float>::infinity();
  if (key <= law::Key(0xc77fdfffu)) return std::bit_cast<float>(0xc77fdfffu);  // next to -65504, which is masked
  const uint32_t bits = law::KeyBits(key);
  const float number = std::bit_cast<float>(bits);
  if (number >= kSmallest || number <= -kSmallest) return number;
  return key > law::Key(0) ? kSmallest : std::bit_cast<float>(std::bit_cast<uint32_t>(-kSmallest) - 1);
}

}  // namespace sortition::kernels::cpu
