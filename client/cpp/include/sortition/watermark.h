// Detects a sequence's watermark in a text.
#pragma once

#include <cstdint>
#include <span>

namespace sortition::client {

struct WatermarkOptions {
  uint64_t key = 0;  // of SamplingParameters.watermark; a secret
  uint32_t context_width = 4;
};

struct WatermarkEvidence {
  uint64_t tokens = 0;  // tokens that count: those with a whole context that has not occurred before
  double score = 0;     // sum of their scores; near `tokens` for a text without the watermark
  double p_value = 1;   // probability that a text without the watermark has at least this score
};

// Scores a text or a part of it. Its first context_width tokens have no whole context and do not count. Takes
// O(tokens). Pure and thread-safe. context_width: 1 to 64.
WatermarkEvidence DetectWatermark(const WatermarkOptions& options, std::span<const uint32_t> tokens);

}  // namespace sortition::client
