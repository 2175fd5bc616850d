// Floats as their bits, and back.
#pragma once

#include <bit>
#include <cstdint>

namespace sortition::law {

inline uint32_t Bits(float x) { return std::bit_cast<uint32_t>(x); }
inline float Number(uint32_t bits) { return std::bit_cast<float>(bits); }

}  // namespace sortition::law
