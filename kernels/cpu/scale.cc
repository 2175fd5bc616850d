// The inverse of the law's distance.
#include "kernels/cpu/scale.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/check.h"
#include "kernels/law/row_law.h"

namespace sortition::kernels::cpu {

namespace {

// Tokens within these are not dead, and have a weight.
constexpr law::Bound kLive = {law::kDeadFromDistance - 1};
constexpr law::Bound kWeighted = {law::kWeightlessFromDistance - 1};

// Returns 2^exponent, which is a normal number.
double PowerOfTwo(int exponent) { return std::bit_cast<double>(uint64_t(1023 + exponent) << 52); }

// `max_bits` is the largest logit that `scale` is for.
RowScale LinearScale(const law::Scale& scale, uint32_t max_bits) {
  const double max = std::bit_cast<float>(max_bits);
  const uint32_t max_key = law::Key(max_bits);
  RowScale row;
  row.scale = scale;
  row.to_fixed_point = std::bit_cast<float>((127 + 157 - row.scale.e0) << 23);
  row.first_live_key = FirstKeyWithin(kLive, max_key, row.scale);
  row.first_weighted_key = FirstKeyWithin(kWeighted, max_key, row.scale);
  const double per_unit =
      double(uint64_t{1} << row.scale.shift) / row.scale.multiplier * PowerOfTwo(int(row.scale.e0) - 157);
  row.logits_per_unit = float(per_unit * (1 + 0x1p-20));
  row.slack = float((std::abs(max) + per_unit * 0x1p32) * 0x1p-20);
  return row;
}

float Float(uint32_t bits) { return std::bit_cast<float>(bits); }

// Returns the smallest key from `min_key` to `max_key` for which `within` is true. It must be true for `max_key`, and
// for every key above one for which it is true. A near guess makes the search short.
template <typename Within>
uint32_t FirstKeyNear(float guess, uint32_t min_key, uint32_t max_key, Within within) {
  uint32_t high = std::clamp(law::Key(std::bit_cast<uint32_t>(guess)), min_key, max_key);
  uint32_t low = min_key - 1;
  uint32_t step = 1;
  if (within(high)) {
    for (; high - low > step; step *= 2) {
      if (!within(high - step)) {
        low = high - step;
        break;
      }
      high -= step;
    }
  } else {
    low = high;
    high = max_key;
    for (; high - low > step; step *= 2) {
      if (within(low + step)) {
        high = low + step;
        break;
      }
      low += step;
    }
  }
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    (within(middle) ? high : low) = middle;
  }
  return high;
}

// Returns about the distance a, in temperatures, from the curve's maximum to its point `fallen` below. It solves square
// * a^2 + cube * a^3 = fallen.
double WhereFallen(double fallen, const CurveFloats& curve) {
  if (fallen <= 0) return 0;
  // Newton's steps begin at the point where one term alone has fallen that far, which is beyond the solution.
  double a = std::numeric_limits<double>::infinity();
  if (curve.square > 0) a = std::sqrt(fallen / curve.square);
  if (curve.cube > 0) a = std::min(a, std::cbrt(fallen / curve.cube));
  for (int i = 0; i < 4; ++i) {
    const double slope = a * (2.0 * curve.square + 3.0 * curve.cube * a);
    if (slope > 0) a -= (a * a * (curve.square + curve.cube * a) - fallen) / slope;
  }
  return a;
}

// Returns about the smallest number whose fixed-point integer is `reach` below the largest number's; it may be off by
// one step.
float NumberBelow(uint64_t reach, const law::Scale& scale) {
  const int64_t least = int64_t{int32_t(scale.max)} - int64_t(reach);
  return float(least > 0 ? least : least - 1) * std::bit_cast<float>((127 + scale.e0 - 157) << 23);
}

// Returns about the number that the row's curve, if there is one, maps to NumberBelow(reach, row.scale).
float NumberBelow(uint64_t reach, const RowScale& row) {
  if (!row.curve.is_on) return NumberBelow(reach, row.scale);
  // The curve falls from 0.
  const double fallen = double(reach) * PowerOfTwo(int(row.scale.e0) - 157);
  return float(row.curve.max - WhereFallen(fallen, row.curve) / row.curve.inverse);
}

}  // namespace

float CurvedFloat(float x, const CurveFloats& curve) {
  const auto flushed = [](float v) { return v < 0x1p-60f ? 0 : v; };
  const float a = flushed(flushed(curve.max - x) * curve.inverse);
  const float factor = flushed(flushed(a * curve.cube) + curve.square);
  const float result = flushed(flushed(a * a) * factor);
  return result == 0 ? 0 : -result;
}

float CurvedLogitBelow(float logit, float distance, const RowScale& scale) {
  // The curve is steeper than its square and its cube alone, so neither leads further down than the curve.
  const CurveFloats& curve = scale.curve;
  const float least = CurvedFloat(logit, curve) - (distance * scale.logits_per_unit + scale.slack);
  float a = std::numeric_limits<float>::infinity();
  if (curve.square > 0) a = std::sqrt(-least / curve.square);
  if (curve.cube > 0) a = std::min(a, std::cbrt(-least / curve.cube));
  return curve.max - a / curve.inverse * 1.001f - std::abs(curve.max) * 0x1p-20f;
}

RowScale MakeRowScale(const law::Temperature& temperature, uint32_t max_key) {
  SORTITION_CHECK(max_key != 0);
  return LinearScale(law::ScaleOf(law::KeyBits(max_key), temperature), law::KeyBits(max_key));
}

RowScale MakeRowScale(const RowParameters& parameters, uint32_t max_key) {
  return MakeRowScale(law::Temperature{parameters.multiplier, parameters.exponent, parameters.window}, max_key);
}

RowScale MakeRowScale(const law::Shape& shape, uint32_t max_key) {
  SORTITION_CHECK(max_key != 0);
  RowScale row = LinearScale(shape.scale, law::ShapedBits(law::KeyBits(max_key), shape));
  if (!shape.is_curved) return row;
  row.curve = {true,
               shape.curve,
               Float(shape.curve.max),
               Float(shape.curve.inverse),
               Float(shape.curve.square),
               Float(shape.curve.cube),
               Float(law::KeyBits(row.first_live_key - 1)),
               Float(law::KeyBits(row.first_weighted_key - 1))};
  row.first_live_key = FirstKeyWithin(kLive, max_key, row);
  row.first_weighted_key = FirstKeyWithin(kWeighted, max_key, row);
  return row;
}

uint32_t FirstKeyWithin(law::Bound bound, uint32_t max_key, const law::Scale& scale) {
  return FirstKeyNear(NumberBelow(law::ReachOf(bound, scale), scale), 1, max_key,
                      [&](uint32_t key) { return law::IsWithin(law::Distance(law::KeyBits(key), scale), bound); });
}

uint32_t FirstKeyWithin(law::Bound bound, uint32_t max_key, const RowScale& row) {
  if (!row.curve.is_on) return FirstKeyWithin(bound, max_key, row.scale);
  const float guess = NumberBelow(law::ReachOf(bound, row.scale), row);
  return FirstKeyNear(guess, law::kLowestKey, max_key, [&](uint32_t key) {
    const float curved = CurvedFloat(Float(law::Flush(law::KeyBits(key))), row.curve);
    return law::IsWithin(law::Distance(std::bit_cast<uint32_t>(curved), row.scale), bound);
  });
}

uint32_t FirstKeyWithinDepth(law::Bound bound, uint32_t max_key, const RowScale& unit) {
  const law::Scale of_depths = {.multiplier = 1u << 30, .e0 = unit.scale.e0, .shift = 30, .max = unit.scale.max};
  const float guess = NumberBelow(law::ReachOf(bound, of_depths), unit);
  return FirstKeyNear(guess, law::kLowestKey, max_key, [&](uint32_t key) {
    const uint32_t bits = law::Flush(law::KeyBits(key));
    const uint32_t curved = unit.curve.is_on ? law::Curved(bits, unit.curve.bits) : bits;
    return law::IsWithin(law::Depth(curved, unit.scale), bound);
  });
}

}  // namespace sortition::kernels::cpu
