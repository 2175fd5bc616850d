// The floats next to the ends of a range, and the floats beyond all ranges.
#pragma once

#include <cmath>
#include <limits>

namespace sortition::service {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

inline float Below(float value) { return std::nextafter(value, -kInfinity); }
inline float Above(float value) { return std::nextafter(value, kInfinity); }

}  // namespace sortition::service
