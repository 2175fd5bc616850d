// The penalty of DRY on a token that would continue a repetition (LAW.md, "Changes").
#pragma once

#include <cstdint>
#include <vector>

namespace sortition::law {

inline constexpr float kMinDryMultiplier = 0.01f;  // 0 is off
inline constexpr float kMaxDryMultiplier = 100.0f;
inline constexpr float kMinDryBase = 1.01f;  // 1 is accepted too
inline constexpr float kMaxDryBase = 100.0f;
inline constexpr float kDefaultDryBase = 1.75f;
inline constexpr uint32_t kMaxDryAllowedLength = 1024;
inline constexpr uint32_t kDefaultDryAllowedLength = 2;

// Element n is the term of a repetition that is n tokens longer than allowed: multiplier * base^n, by n products of
// doubles that are each rounded once. It ends with the first element that masks any live logit, or, for base 1, with
// element 0; longer repetitions have the last element. At most 2^11 elements. Asserts the ranges above.
std::vector<double> DryTerms(float multiplier, float base);

}  // namespace sortition::law
