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

// Bias, bans and penalties of the row that follows `tokens`, of which the first `prompt_length` are prompt; sorted.
std::vector<kernels::LogitEdit> PlainEdits(const v1::SamplingParameters& parameters,
                                           const std::vector<uint32_t>& tokens, uint32_t prompt_length);

// Returns the token that is forced after `output` tokens of output for any logits, if there is one.
std::optional<uint32_t> PlainForcedToken(const v1::SamplingParameters& parameters, size_t output);

// Returns true if the output ends in a repetition that repetition_stop reports.
bool PlainRepeats(const v1::SamplingParameters& parameters, const std::vector<uint32_t>& tokens,
                  uint32_t prompt_length);
// Returns the position at which the longest of banned_phrases begins that the output ends in.
std::optional<uint32_t> PlainPhraseFrom(const v1::SamplingParameters& parameters, const std::vector<uint32_t>& tokens,
                                        uint32_t prompt_length);

}  // namespace sortition::testing
