// Natural-log probabilities from the integers that a kernel returns. Runs on the host, so that no device needs a
// logarithm.
#pragma once

#include <cstdint>

#include "kernels/law/law.h"
#include "kernels/row.h"

namespace sortition::law {

// ln of the probability that `distribution` gives to a token of canonical logit bits `token_bits`:
//
//   (x - M) / temperature - ln(S * 2^-44)
//
// in IEEE double without contraction, with ln S from the law's integer log2, rounded once to f32. `token_bits` are in
// the distribution (its `chosen`, or an entry of its `top`), or are -Inf's, which gives -Inf; the pair of a
// distribution and its temperature is (answer.raw, 1), (answer.processed, ProcessedTemperature) or (answer.tempered,
// TemperedTemperature). A distribution of one token gives exactly +0. Result in nats. Pure and thread-safe; the same
// bits on every machine.
float Logprob(const kernels::Distribution& distribution, uint32_t token_bits, double temperature);

// Entropy of a distribution, ln(S * 2^-44) + (surplus / S) ln 2, in nats, likewise; within 2e-7 of the entropy of its
// weights.
float Entropy(const kernels::EntropySums& sums);

// ln of the kept tokens' mass: (log2 of `kept` - log2 of `all`) ln 2, likewise; -Inf where `kept` is 0. Never above 0.
float KeptLogMass(const kernels::KeptMass& mass);

// w / S of a kept token, in double, rounded once to f32. `scale` is the row's.
float Probability(uint32_t token_bits, uint64_t weight_sum, const Scale& scale);

}  // namespace sortition::law
