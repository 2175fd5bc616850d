// A row's scale of distances, with derived values, and the way back from distances to keys.
#pragma once

#include <cstdint>

#include "kernels/law/law.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

// Smoothing as floating-point operations, which are the law's one by one. square and cube are 0 without smoothing.
struct CurveFloats {
  bool is_on = false;
  law::Curve bits = {};  // the same as bits
  float max = 0;
  float inverse = 1;
  float square = 0;
  float cube = 0;
  // The largest smoothed logits that are dead, and weightless. They replace smaller ones.
  float just_dead = 0;
  float just_weightless = 0;
};

struct RowScale {
  law::Scale scale;
  float to_fixed_point;                 // law::FixedPoint(x) = truncate(x * to_fixed_point); a power of two
  uint32_t first_live_key;              // keys below it are dead
  uint32_t first_weighted_key;          // keys below it have weight 0
  float logits_per_unit;                // of distance, rounded up
  float slack;                          // in logits; more than the sum of all roundings from distances to logits
  const law::Shape* adapted = nullptr;  // adaptive-p's change of the distances; not owned
  CurveFloats curve = {};               // if on, `scale` measures smoothed logits; keys still belong to unsmoothed ones
};

// `max_key`: the row's largest key, not 0.
RowScale MakeRowScale(const RowParameters& parameters, uint32_t max_key);

// Returns the scale of a temperature.
RowScale MakeRowScale(const law::Temperature& temperature, uint32_t max_key);

// Returns the scale of a row that a chain has shaped; shape.scale is the scale of `max_key`. Adaptive-p is ignored.
RowScale MakeRowScale(const law::Shape& shape, uint32_t max_key);

// `key` is live and not above the largest.
inline uint32_t DistanceOfKey(uint32_t key, const RowScale& row) {
  const uint32_t bits = law::KeyBits(key);
  if (row.adapted != nullptr) return law::ShapedDistance(bits, *row.adapted);
  return law::Distance(row.curve.is_on ? law::Curved(bits, row.curve.bits) : bits, row.scale);
}

// law::Curved of a number that is not above the curve's maximum.
float CurvedFloat(float x, const CurveFloats& curve);

// Is LogitBelow for a row with a curve.
float CurvedLogitBelow(float logit, float distance, const RowScale& scale);

// Returns `logit` less `distance`, or a little less. A token with a smaller sent logit is further than `distance` from
// one with `logit`. This prunes; it decides nothing.
inline float LogitBelow(float logit, float distance, const RowScale& scale) {
  if (scale.curve.is_on) return CurvedLogitBelow(logit, distance, scale);
  return logit - (distance * scale.logits_per_unit + scale.slack);
}

// law::FirstKeyKept of distances without a curve, in a few steps. Keys below the smallest live logit's count too. The
// bound is below law::kDeadFromDistance.
uint32_t FirstKeyWithin(law::Bound bound, uint32_t max_key, const law::Scale& scale);

// law::FirstKeyKept of distances in a row whose largest key is `max_key`, with its curve if it has one.
uint32_t FirstKeyWithin(law::Bound bound, uint32_t max_key, const RowScale& row);

// law::FirstKeyKept of depths (law::kCutDepth), in a few steps; `unit` is of the unit shape.
uint32_t FirstKeyWithinDepth(law::Bound bound, uint32_t max_key, const RowScale& unit);

}  // namespace sortition::kernels::cpu
