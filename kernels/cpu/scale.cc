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

// `max` is the largest logit that `scale` is for.
RowScale LinearScale(const law::Scale& scale, double max) {
  RowScale row;
  row.scale = scale;
  row.to_fixed_point = std::bit_cast<float>((127 + 157 - row.scale.e0) << 23);
  row.first_live_key = FirstKeyWithin(kLive, row.scale);
  row.first_weighted_key = FirstKeyWithin(kWeighted, row.scale);
  const double per_unit =
      std::ldexp(double(uint64_t{1} << row.scale.shift) / row.scale.multiplier, int(row.scale.e0) - 157);
  row.logits_per_unit = float(per_unit * (1 + 0x1p-20));
  row.slack = float((std::abs(max) + per_unit * 0x1p32) * 0x1p-20);
  return row;
}

float Float(uint32_t bits) { return std::bit_cast<float>(bits); }

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

namespace {

// law::FirstKeyKept of distances, with the curve in floats.
uint32_t FirstCurvedWithin(law::Bound bound, uint32_t max_key, const RowScale& row) {
  uint32_t low = law::kLowestKey;
  uint32_t high = max_key;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    const float curved = CurvedFloat(Float(law::Flush(law::KeyBits(middle))), row.curve);
    if (law::IsWithin(law::Distance(std::bit_cast<uint32_t>(curved), row.scale), bound)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return high;
}

}  // namespace

RowScale ScaleOf(const law::Temperature& temperature, uint32_t max_key) {
  SORTITION_CHECK(max_key != 0);
  return LinearScale(law::ScaleOf(law::KeyBits(max_key), temperature), Float(law::KeyBits(max_key)));
}

RowScale ScaleOf(const RowParameters& parameters, uint32_t max_key) {
  return ScaleOf(law::Temperature{parameters.multiplier, parameters.exponent, parameters.window}, max_key);
}

RowScale ScaleOf(const law::Shape& shape, uint32_t max_key) {
  SORTITION_CHECK(max_key != 0);
  RowScale row = LinearScale(shape.scale, Float(law::ShapedBits(law::KeyBits(max_key), shape)));
  if (!shape.is_curved) return row;
  row.curve = {true,
               shape.curve,
               Float(shape.curve.max),
               Float(shape.curve.inverse),
               Float(shape.curve.square),
               Float(shape.curve.cube),
               Float(law::KeyBits(row.first_live_key - 1)),
               Float(law::KeyBits(row.first_weighted_key - 1))};
  row.first_live_key = FirstCurvedWithin(kLive, max_key, row);
  row.first_weighted_key = FirstCurvedWithin(kWeighted, max_key, row);
  return row;
}

uint32_t FirstKeyWithin(law::Bound bound, const law::Scale& scale) {
  const int64_t least = int64_t{int32_t(scale.max)} - int64_t(law::ReachOf(bound, scale));
  // The float next to the smallest number that truncates to `least`, or one beside it.
  const float edge = float(least > 0 ? least : least - 1) * std::bit_cast<float>((127 + scale.e0 - 157) << 23);
  const auto within = [&](uint32_t key) { return law::IsWithin(law::Distance(law::KeyBits(key), scale), bound); };
  const uint32_t bits = std::bit_cast<uint32_t>(edge);
  uint32_t key = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  while (!within(key)) ++key;
  while (within(key - 1)) --key;
  return key;
}

}  // namespace sortition::kernels::cpu
