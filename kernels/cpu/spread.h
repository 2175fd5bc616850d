// The spread of logits: top-n-sigma's deviation is bounded by it.
#pragma once

#include <cstdint>
#include <limits>

namespace sortition::kernels::cpu {

// An estimate of Levels (simd/kernels.h), from logits as floats, none below some lowest one. The sum's error is at most
// kSpreadError times the sum of magnitudes; the error of `squares` at most kSpreadError times `squares`.
struct Spread {
  uint32_t count = 0;
  double sum = 0;
  double squares = 0;
};
inline constexpr double kSpreadError = 0x1p-18;

// The spread of a row's first groups as they were sent.
struct SentSpread {
  uint32_t groups = 0;
  Spread spread;
  // A bound for the square of each logit. If it is small enough, no logit is masked or below a given number.
  float largest_square = std::numeric_limits<float>::infinity();
};

}  // namespace sortition::kernels::cpu
