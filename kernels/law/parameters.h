// Sampling options as people write them, their ranges, and their compilation to the law's integers.
//
// Every function here is pure, thread-safe and gives the same bits on every machine: integers, and IEEE double or float
// operations that round once (+, *, /), never a function of a system library.
#pragma once

#include <cstdint>

#include "kernels/row.h"

namespace sortition::law {

// Ranges that the law accepts, ends included unless said otherwise. Whoever takes options from outside refuses the rest by
// name; `Compile` asserts.
inline constexpr float kMinTemperature = 0.01f;  // 0 is accepted too and means greedy
inline constexpr float kMaxTemperature = 100.0f;
inline constexpr uint32_t kMaxTopK = (1u << 20) - 1;
inline constexpr float kMaxTopP = 1.0f;  // above 0
inline constexpr float kMinMinP = 0.0f;
inline constexpr float kMaxMinP = 1.0f;
inline constexpr float kMinRepetitionPenalty = 0.01f;
inline constexpr float kMaxRepetitionPenalty = 100.0f;
inline constexpr float kMaxAbsFrequencyPenalty = 100.0f;
inline constexpr float kMaxAbsPresencePenalty = 100.0f;
// A live logit lies strictly between -kLogitLimit and kLogitLimit, and so does a bias.
inline constexpr float kLogitLimit = 65504.0f;

// A sequence's sampling options. The defaults are the off values: they change nothing and cost nothing.
//
//   option              unit, range                   meaning (where the meaning comes from)
//   temperature         0, or 0.01 to 100             logits are divided by it; 0 = greedy, the first token in order
//   top_k               tokens, 0 to 2^20 - 1         keep the first k in order, ties cut by lowest id (llama.cpp); 0 = off
//   top_p               probability, (0, 1]           keep the shortest ordered prefix of mass >= p (Holtzman et al. 2019)
//   min_p               probability ratio, [0, 1]     keep tokens of at least this share of the likeliest token's
//                                                     probability (Nguyen et al. 2024), at the temperature in force
//   repetition_penalty  factor, 0.01 to 100           negative logits times it, others divided by it (Keskar et al. 2019)
//   frequency_penalty   logit per count, -100 to 100  subtracted once for each earlier occurrence (OpenAI's API)
//   presence_penalty    logit, -100 to 100            subtracted if the token occurred at all (OpenAI's API)
struct SamplingParameters {
  float temperature = 1;
  uint32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;
  float frequency_penalty = 0;
  float presence_penalty = 0;
  bool operator==(const SamplingParameters&) const = default;
};

// Sets the fields of `*compiled` that options decide and leaves its `mask_nan` and logprob fields as they are. Frequency and
// presence leave no trace there: they reach a row as TokenPatch::penalty. Asserts that every option is in range.
//
//   temperature         -> greedy, multiplier, exponent, window, temperature (1 when greedy)
//   top_k               -> top_k
//   top_p               -> top_p = round half even of p * 2^32, at least 1; 0 (off) where that is 2^32
//   min_p               -> min_p_distance (see MinPDistance)
//   repetition_penalty  -> repetition, inverse_repetition; 0 (off) at 1
void Compile(const SamplingParameters& parameters, kernels::RowParameters* compiled);

// The bits of a finite number that is to be added to logits, in canonical form: magnitudes below 2^-60, -0 included, become
// +0, so that 0 means "adds nothing". This is the form of TokenPatch::bias.
uint32_t CanonicalBits(float value);

// TokenPatch::penalty of a token that occurred `count` times (count >= 1): -(frequency * count + presence), each operation in
// double, rounded once to f32, canonical. Frequency and presence must be in range. Logit units.
uint32_t PenaltyBits(float frequency, float presence, uint32_t count);

// The largest distance that min-p keeps: floor(-log2(min_p) * 2^26) exactly, in Q6.26 octaves; RowParameters::kMinPOff for
// min_p = 0, and where the bound reaches past the largest distance there is, so that it could not drop anything.
uint32_t MinPDistance(float min_p);

}  // namespace sortition::law
