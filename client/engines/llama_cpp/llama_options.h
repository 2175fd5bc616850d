// Sampling options under llama.cpp's names, and their conversion to Sortition's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sortition/v1/parameters.pb.h"

namespace sortition::engines::llama_cpp {

// Names, defaults and off values are llama.cpp's, in common_params_sampling. Options of Sortition without a counterpart
// there keep their defaults.
struct SamplingOptions {
  int32_t top_k = 40;  // <= 0: off
  float top_p = 0.95f;
  float min_p = 0.05f;
  float typ_p = 1.0f;
  float top_n_sigma = -1.0f;  // < 0: off
  float temp = 0.8f;          // <= 0: greedy
  float dynatemp_range = 0.0f;
  float dynatemp_exponent = 1.0f;
  float xtc_probability = 0.0f;
  float xtc_threshold = 0.1f;
  int32_t penalty_last_n = 64;  // <= 0: no penalties
  float penalty_repeat = 1.0f;
  float penalty_freq = 0.0f;
  float penalty_present = 0.0f;
  int32_t mirostat = 0;  // 1 or 2
  float mirostat_tau = 5.0f;
  float mirostat_eta = 0.1f;
  float adaptive_target = -1.0f;  // < 0: off
  float adaptive_decay = 0.9f;
  // Holds for top_p, min_p, typical_p and XTC. Refused beside top_n_sigma and a smaller top_k, which ignore it there.
  int32_t min_keep = 0;
  // Budget of a thought between two tags, as tokens. -1: none.
  int32_t reasoning_budget_tokens = -1;
  std::vector<int32_t> reasoning_budget_start;
  std::vector<int32_t> reasoning_budget_end;
  std::vector<int32_t> reasoning_budget_forced;  // emitted when the budget is used up; empty: the end
  // llama.cpp's names of samplers, first applied first. A sampler that is not in the list is off. Absent: llama.cpp's
  // default order, with adaptive_p where its target is set.
  std::optional<std::vector<std::string>> samplers;
  struct Bias {
    int32_t token = 0;
    float bias = 0;  // -Inf bans the token
  };
  std::vector<Bias> logit_bias;
};

// Converts the options. INVALID_ARGUMENT names an option without a counterpart. The service checks the message when a
// sequence opens.
absl::StatusOr<v1::SamplingParameters> ToParameters(const SamplingOptions& options);

}  // namespace sortition::engines::llama_cpp
