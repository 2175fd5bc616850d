// Tells whether a text carries a sequence's watermark.
#pragma once

#include <cstdint>
#include <span>

namespace sortition::client {

struct WatermarkOptions {
  uint64_t key = 0;  // of SamplingParameters.watermark; a secret
  uint32_t context_width = 4;
  uint32_t choice_index = 0;
};

struct WatermarkEvidence {
  uint64_t tokens = 0;  // that were looked at: those with a whole context, each context and token once
  double score = 0;     // their sum; of the order of `tokens` in any other text
  double p_value = 1;   // the chance that a text without the watermark scores so much
};

// `tokens`: the text, or a part of it. O(tokens). Pure and thread-safe. context_width: 1 to 64.
WatermarkEvidence DetectWatermark(const WatermarkOptions& options, std::span<const uint32_t> tokens);

}  // namespace sortition::client
