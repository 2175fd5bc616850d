// law::kPowers by a distance's octaves and 32nds, as the doubles that turn law::WeightCurve into weights.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/law/law.h"

namespace sortition::kernels::cpu {

// Indexed by t >> 21: law::Weight(t) is the product with law::WeightCurve(t), rounded down. Exact, for powers have 32
// bits.
inline constexpr auto kScaledPowers = [] {
  std::array<double, 1 << 11> table = {};
  double unit = 0x1p-15;
  for (uint32_t i = 0; i < law::kWeightlessFromDistance >> 21; ++i) {
    table[i] = law::kPowers[i % 32] * unit;
    if (i % 32 == 31) unit /= 2;
  }
  return table;
}();

}  // namespace sortition::kernels::cpu
