// The penalty of DRY on a token that would continue a repetition (LAW.md, "Changes").
#pragma once

#include <cstdint>
#include <vector>

namespace sortition::law {

// Element n is the term of a repetition that is n tokens longer than allowed: multiplier * base^n, by n products of
// doubles that are each rounded once. It ends with the first element that masks any live logit, or, for base 1, with
// element 0; longer repetitions have the last element. At most 2^11 elements. Asserts their ranges.
std::vector<double> DryTerms(float multiplier, float base);

}  // namespace sortition::law
