// Sums the scores of tokens, and computes the tail probability of the sum.
#include "sortition/watermark.h"

#include <algorithm>
#include <cmath>

#include "absl/container/flat_hash_set.h"
#include "kernels/check.h"
#include "kernels/law/row_law.h"
#include "kernels/law/token_noise.h"
#include "kernels/law/watermark.h"

namespace sortition::client {
namespace {

// Returns the evidence of a token for the watermark: -ln(1 - exp(-E)) of its noise E under that key. For a token that
// was not drawn with the key it is an exponential variable of mean 1; for one that was, more.
double TokenEvidence(const kernels::NoiseKey& noise, uint32_t token) {
  // L is log2 of -log2(1 - U), so E = 2^L ln 2.
  const double log = double(int64_t(law::TokenNoise(law::ToDrawKey(noise), token))) * 0x1p-32;
  return -std::log(-std::expm1(-std::exp2(log) * 0.69314718055994531));
}

// Returns the probability that the sum of n exponential variables of mean 1 is at least x: e^-x times the sum of
// x^k / k! for k < n.
double UpperTail(uint64_t n, double x) {
  if (n == 0 || x <= 0) return 1;
  double log_term = -x;
  double tail = 0;
  for (uint64_t k = 0; k < n; ++k) {
    if (k > 0) log_term += std::log(x / static_cast<double>(k));
    tail += std::exp(log_term);
  }
  return std::min(tail, 1.0);
}

}  // namespace

WatermarkEvidence DetectWatermark(const WatermarkOptions& options, std::span<const uint32_t> tokens) {
  SORTITION_CHECK(options.context_width >= 1 && options.context_width <= law::kMaxWatermarkWidth);
  WatermarkEvidence evidence;
  absl::flat_hash_set<uint64_t> seen;  // contexts, by their hashes
  for (size_t at = options.context_width; at < tokens.size(); ++at) {
    const auto context = tokens.subspan(at - options.context_width, options.context_width);
    const kernels::NoiseKey noise = law::WatermarkNoise(options.key, context);
    if (!seen.insert(noise.seed).second) continue;
    ++evidence.tokens;
    evidence.score += TokenEvidence(noise, tokens[at]);
  }
  evidence.p_value = UpperTail(evidence.tokens, evidence.score);
  return evidence;
}

}  // namespace sortition::client
