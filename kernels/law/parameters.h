// Sampling options as people write them, their ranges, and their compilation to the law's integers.
//
// Every function here is pure, thread-safe and gives the same bits on every machine: integers, and IEEE double or float
// operations that round once (+, *, /), never a function of a system library.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/row.h"

namespace sortition::law {

// Ranges that the law accepts, ends included unless said otherwise. Callers that take options from outside refuse other
// values by name; `Compile` asserts.
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

inline constexpr float kMinTopNSigma = 0.01f;  // 0 is accepted too and means off
inline constexpr float kMaxTopNSigma = 100.0f;
inline constexpr float kMaxXtcThreshold = 0.5f;  // above it XTC is off, as in llama.cpp
inline constexpr float kMinDynamicExponent = 0.01f;
inline constexpr float kMaxDynamicExponent = 10.0f;
inline constexpr float kMaxSmoothingFactor = 100.0f;
inline constexpr float kMinSmoothingCurve = 1.0f;
inline constexpr float kMaxSmoothingCurve = 3.0f;  // beyond it smoothing would put other tokens before the first
inline constexpr float kMaxMirostatTau = 20.0f;
inline constexpr float kMaxMirostatEta = 1.0f;
inline constexpr uint32_t kMinMirostatM = 2;
inline constexpr uint32_t kMaxMirostatM = 1000;
inline constexpr float kMaxAdaptiveDecay = 0.99f;
inline constexpr float kMaxMinKTau = 100.0f;
inline constexpr uint32_t kMaxMinKeep = 1000;  // kMostKeptAtLeast of stage.inc

// Samplers of a chain. Dynamic temperature takes the place of temperature.
enum class Sampler : uint8_t {
  kTemperature,
  kQuadraticSmoothing,
  kTopNSigma,
  kMinP,
  kTopK,
  kTopP,
  kTypicalP,
  kEpsilonCutoff,
  kEtaCutoff,
  kTopA,
  kTopH,
  kPLess,
  kXtc,
  kMirostat,
  kAdaptiveP,
  kMinK,
};
inline constexpr uint32_t kSamplers = 16;

// A sequence's sampling options. The defaults are the off values: they change nothing and cost nothing.
struct SamplingParameters {
  // Logits are divided by it. 0, which is greedy (the first token in order), or 0.01 to 100.
  float temperature = 1;

  // Keep the first k tokens in order; ties are cut by lowest id, as llama.cpp does. Tokens, 0 (off) to 2^20 - 1.
  uint32_t top_k = 0;

  // Keep the shortest ordered prefix of at least this mass (Holtzman et al. 2019). Probability, in (0, 1]; 1 is off.
  float top_p = 1;

  // Keep tokens of at least this share of the likeliest token's probability, at the temperature in force (Nguyen et al.
  // 2024). Ratio, 0 (off) to 1.
  float min_p = 0;

  // Repetition penalty of tokens that occurred before: negative logits are multiplied by it, others divided (Keskar et
  // al. 2019). Factor, 0.01 to 100; 1 is off.
  float repetition_penalty = 1;

  // Subtracted once for each time a token occurred (OpenAI's API). Logit units, -100 to 100.
  float frequency_penalty = 0;

  // Subtracted if a token occurred at all (OpenAI's API). Logit units, -100 to 100.
  float presence_penalty = 0;

  // The samplers of the chain. LAW.md has each one's formula and source.
  float typical_p = 1;       // probability, (0, 1]; 1 is off
  float top_n_sigma = 0;     // standard deviations, 0 (off) or 0.01 to 100
  float epsilon_cutoff = 0;  // probability, 0 (off) to 1
  float eta_cutoff = 0;      // probability, 0 (off) to 1
  float top_a = 0;           // ratio, 0 (off) to 1
  float top_h = 0;           // share of the entropy, 0 (off) to 1
  bool p_less = false;
  float xtc_probability = 0;               // 0 (off) to 1
  float xtc_threshold = 0.1f;              // probability, above 0; above 0.5 is off
  float dynamic_temperature_range = 0;     // on either side of the temperature, 0 (off) to 100
  float dynamic_temperature_exponent = 1;  // 0.01 to 10
  float smoothing_factor = 0;              // 0 (off) to 100
  float smoothing_curve = 1;               // 1 to 3
  uint32_t mirostat = 0;                   // version 1 or 2; 0 is off
  float mirostat_tau = 5;                  // octaves of surprise, above 0, to 20
  float mirostat_eta = 0.1f;               // above 0, to 1
  uint32_t mirostat_m = 100;               // tokens, 2 to 1000; of version 1
  bool adaptive_p = false;
  float adaptive_target = 0;    // probability, 0 to 1
  float adaptive_decay = 0.9f;  // 0 to 0.99
  bool min_k = false;
  float min_k_tau = 3;    // logits, 0 to 100
  uint32_t min_keep = 0;  // tokens that each filter keeps at least, 0 to 1000; 0 and 1 are off

  // First applied first; holds every sampler that is on, none twice, mirostat or adaptive-p last. Empty: PresetOrder of
  // Preset::kVllm.
  std::vector<Sampler> order = {};

  bool operator==(const SamplingParameters&) const = default;
};

// Sets the fields of `*compiled` that options decide and leaves its `mask_nan` and logprob fields as they are.
// Frequency and presence leave no trace there: they reach a row as LogitEdit::penalty. Asserts that every option is in
// range.
//
//   temperature         -> greedy, multiplier, exponent, window, temperature (1 when greedy)
//   top_k               -> top_k
//   top_p               -> top_p = round half even of p * 2^32, at least 1; 0 (off) where that is 2^32
//   min_p               -> min_p_distance (see MinPDistance)
//   repetition_penalty  -> repetition, inverse_repetition; 0 (off) at 1
//
// Where other samplers of the chain are on, or these stand in another order than temperature, min-p, top-k, top-p, or
// filters keep more than one token, all of the chain goes to `chain` and the first four to their off values, but for
// `greedy`: greedy rows have no chain.
void Compile(const SamplingParameters& parameters, kernels::RowParameters* compiled);

// The bits of a finite number that is to be added to logits, in canonical form: magnitudes below 2^-60, -0 included,
// become +0, so that 0 means "adds nothing". This is the form of LogitEdit::bias.
uint32_t CanonicalBits(float value);

// LogitEdit::penalty of a token that occurred `count` times and has the term `dry` of DRY (dry.h; 0 = none):
// -(frequency * count + presence + dry), each operation in double, rounded once to f32, canonical; without the first
// two terms if the token did not occur. Frequency and presence must be in range. Logit units.
uint32_t PenaltyBits(float frequency, float presence, uint32_t count, double dry = 0);

// The largest distance that min-p keeps: floor(-log2(min_p) * 2^26) exactly, in Q6.26 octaves; RowParameters::kMinPOff
// for min_p = 0, and where the bound reaches past the largest distance there is, so that it could not drop anything.
uint32_t MinPDistance(float min_p);

}  // namespace sortition::law
