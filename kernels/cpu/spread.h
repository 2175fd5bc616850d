// The spread of logits: what top-n-sigma's deviation is bounded from.
#pragma once

#include <cstdint>
#include <limits>

namespace sortition::kernels::cpu {

// An estimate of Levels (simd/kernels.h), from logits as floats that are not below some lowest one. In exact arithmetic
// the sum would differ by at most kSpreadError times the sum of their sizes, and the squares by that share.
struct Spread {
  uint32_t count = 0;
  double sum = 0;
  double squares = 0;
};
inline constexpr double kSpreadError = 0x1p-18;

// That of a row's first groups as they were sent.
struct SentSpread {
  uint32_t groups = 0;
  Spread spread;
  // No logit has a larger square: so none is masked, or below some number, if this is small enough.
  float largest_square = std::numeric_limits<float>::infinity();
};

}  // namespace sortition::kernels::cpu
