// Rows of logits as a pure function of a key, so that a row can be made again for the reference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "sortition/v1/sampling.pb.h"

namespace sortition::testing {

// Makes `vocabulary` elements of `dtype` in memory order. Magnitudes are between 2^-4 and 16, with either sign.
inline std::vector<std::byte> MakeRow(v1::DType dtype, uint32_t vocabulary, uint64_t key) {
  const bool wide = dtype == v1::DTYPE_F32;
  const uint32_t mantissa_bits = wide ? 23 : dtype == v1::DTYPE_F16 ? 10 : 7;
  const uint32_t bias = dtype == v1::DTYPE_F16 ? 15 : 127;
  const uint32_t element_bits = wide ? 32 : 16;
  std::mt19937_64 random(key);
  std::vector<std::byte> row;
  row.reserve(size_t{vocabulary} * element_bits / 8);
  for (uint32_t i = 0; i < vocabulary; ++i) {
    const uint64_t draw = random();
    const uint32_t exponent = bias - 4 + static_cast<uint32_t>(draw >> 40) % 8;
    const uint32_t mantissa = static_cast<uint32_t>(draw) & ((1u << mantissa_bits) - 1);
    const uint32_t sign = static_cast<uint32_t>(draw >> 63) << (element_bits - 1);
    const uint32_t bits = sign | exponent << mantissa_bits | mantissa;
    for (uint32_t byte = 0; byte < element_bits / 8; ++byte) row.push_back(static_cast<std::byte>(bits >> (8 * byte)));
  }
  return row;
}

}  // namespace sortition::testing
