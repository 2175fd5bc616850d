// Effect of the options that look at a history on the next row, written down from their definitions and computed anew
// from the whole history.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/row.h"
#include "sortition/v1/parameters.pb.h"

namespace sortition::testing {

// Returns bias, bans and penalties, under parameters without phases, of the row that follows `tokens`, sorted. The
// first `prompt_length` tokens are prompt.
std::vector<kernels::LogitEdit> PlainEdits(const v1::SamplingParameters& parameters,
                                           const std::vector<uint32_t>& tokens, uint32_t prompt_length);

// Where a text stands among the phases.
struct PlainPlace {
  uint32_t phase = 0;              // 1 + its index; 0: outside
  std::optional<uint32_t> forced;  // token that comes next for any logits
  bool operator==(const PlainPlace&) const = default;
};

// Reads the whole history.
PlainPlace PlainPlaceAfter(const v1::SamplingParameters& parameters, const std::vector<uint32_t>& tokens,
                           uint32_t prompt_length);

// Returns the parameters that hold in a phase, without phases.
v1::SamplingParameters PlainWithin(const v1::SamplingParameters& parameters, uint32_t phase);

// Returns true if the output ends in a repetition that repetition_stop reports.
bool PlainRepeats(const v1::SamplingParameters& parameters, const std::vector<uint32_t>& tokens,
                  uint32_t prompt_length);
// Returns the first position of the longest banned phrase at the output's end.
std::optional<uint32_t> PlainPhraseFrom(const v1::SamplingParameters& parameters, const std::vector<uint32_t>& tokens,
                                        uint32_t prompt_length);

// Returns the noise of a draw after `tokens`: a watermark's, or `own`, which follows from seed and position.
kernels::NoiseKey PlainNoise(const v1::SamplingParameters& parameters, const std::vector<uint32_t>& tokens,
                             const kernels::NoiseKey& own);

}  // namespace sortition::testing
