// Sampling options as people write them, their ranges, and their compilation to the law's integers.
//
// Every function here is pure, thread-safe and gives the same bits on every machine: integers, and IEEE double or float
// operations that round once (+, *, /), never a function of a system library.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/row.h"

namespace sortition::law {

// A live logit lies strictly between -kLogitLimit and kLogitLimit, and so does a bias.
inline constexpr float kLogitLimit = 65504.0f;
inline constexpr float kMaxXtcThreshold = 0.5f;  // above it XTC is off, as in llama.cpp

// Samplers of a chain. Dynamic temperature takes the place of temperature.
enum class Sampler : uint8_t {
#define SAMPLER(sampler, name, first, last, greedy, operand, vllm, llama_cpp, hf) k##sampler,
#include "kernels/law/options.inc"
};
inline constexpr uint32_t kSamplers = 0
#define SAMPLER(sampler, name, first, last, greedy, operand, vllm, llama_cpp, hf) +1
#include "kernels/law/options.inc"
    ;

// A sequence's sampling options: the LAW_ lines of options.inc, which has their meaning, units and ranges. The defaults
// are the off values: they change nothing and cost nothing. Callers that take options from outside refuse values out of
// range by name (options.h); `Compile` asserts.
struct SamplingParameters {
#define LAW_NUMBER(name, type, value, form, low, high, effect, phase, text) type name = value;
#define LAW_FLAG(name, phase, text) bool name = false;
#define LAW_MESSAGE(name, on, phase, more, text) LAW_MESSAGE_##on(name)
#define LAW_MESSAGE_ByValue(name)
#define LAW_MESSAGE_ByPresence(name) bool name = false;
#define LAW_PART(name, part, member, type, value, form, low, high) type member = value;
#include "kernels/law/options.inc"
#undef LAW_MESSAGE_ByValue
#undef LAW_MESSAGE_ByPresence

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
// The whole chain goes to `chain`, and the first four get their off values, if other samplers are on, the order is not
// temperature, min-p, top-k, top-p, or filters keep more than one token. Greedy rows have no chain.
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
