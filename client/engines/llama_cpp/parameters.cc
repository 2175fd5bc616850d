// Converts llama.cpp's options to the contract's.
#include "client/engines/llama_cpp/parameters.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace sortition::engines::llama_cpp {
namespace {

void SetPenalties(const SamplingOptions& options, v1::SamplingParameters* parameters) {
  const bool on = options.penalty_repeat != 1 || options.penalty_freq != 0 || options.penalty_present != 0;
  if (!on || options.penalty_last_n == 0) return;
  if (options.penalty_repeat != 1) parameters->set_repetition_penalty(options.penalty_repeat);
  if (options.penalty_freq != 0) parameters->set_frequency_penalty(options.penalty_freq);
  if (options.penalty_present != 0) parameters->set_presence_penalty(options.penalty_present);
  // llama.cpp does not distinguish between prompt and output.
  v1::PenaltyScope* scope = parameters->mutable_penalty_scope();
  if (options.penalty_last_n > 0) scope->set_window(static_cast<uint32_t>(options.penalty_last_n));
  if (options.penalty_freq != 0 || options.penalty_present != 0) scope->set_frequency_counts_prompt(true);
}

// Sets the filters, and returns the number of those whose result depends on the stages before them.
int SetFilters(const SamplingOptions& options, v1::SamplingParameters* parameters) {
  int filters = 0;
  if (options.top_n_sigma >= 0) parameters->set_top_n_sigma(options.top_n_sigma), ++filters;
  if (options.top_k > 0) parameters->set_top_k(static_cast<uint32_t>(options.top_k)), ++filters;
  if (options.typ_p != 1) parameters->set_typical_p(options.typ_p), ++filters;
  if (options.top_p != 1) parameters->set_top_p(options.top_p), ++filters;
  if (options.min_p != 0) parameters->set_min_p(options.min_p), ++filters;
  if (options.xtc_probability != 0) {
    parameters->mutable_xtc()->set_probability(options.xtc_probability);
    parameters->mutable_xtc()->set_threshold(options.xtc_threshold);
    ++filters;
  }
  return filters;
}

void SetTemperature(const SamplingOptions& options, v1::SamplingParameters* parameters) {
  parameters->set_temperature(options.temp);
  if (options.dynatemp_range > 0) {
    parameters->mutable_dynamic_temperature()->set_range(options.dynatemp_range);
    parameters->mutable_dynamic_temperature()->set_exponent(options.dynatemp_exponent);
  }
}

absl::Status SetBias(const SamplingOptions& options, v1::SamplingParameters* parameters) {
  for (const SamplingOptions::Bias& bias : options.logit_bias) {
    if (bias.token < 0) return absl::InvalidArgumentError(absl::StrCat("logit_bias: no token has the id ", bias.token));
    if (bias.bias == -INFINITY) {
      parameters->add_banned_token_ids(static_cast<uint32_t>(bias.token));
      continue;
    }
    v1::LogitBias* added = parameters->add_logit_bias();
    added->set_token(static_cast<uint32_t>(bias.token));
    added->set_bias(bias.bias);
  }
  return absl::OkStatus();
}

// Copies the tokens of the option `name`.
absl::Status SetTokens(const char* name, const std::vector<int32_t>& tokens,
                       google::protobuf::RepeatedField<uint32_t>* copy) {
  for (const int32_t token : tokens) {
    if (token < 0) return absl::InvalidArgumentError(absl::StrCat(name, ": no token has the id ", token));
    copy->Add(static_cast<uint32_t>(token));
  }
  return absl::OkStatus();
}

// A budget is a phase that holds the sequence's own parameters. llama.cpp ignores one without tags.
absl::Status SetBudget(const SamplingOptions& options, v1::SamplingParameters* parameters) {
  if (options.reasoning_budget_tokens < 0) return absl::OkStatus();
  if (options.reasoning_budget_start.empty()) return absl::InvalidArgumentError("reasoning_budget_start: is empty");
  if (options.reasoning_budget_end.empty()) return absl::InvalidArgumentError("reasoning_budget_end: is empty");
  v1::Phase& phase = *parameters->add_phases();
  phase.set_max_tokens(static_cast<uint32_t>(options.reasoning_budget_tokens));
  absl::Status status = SetTokens("reasoning_budget_start", options.reasoning_budget_start, phase.mutable_begin());
  status.Update(SetTokens("reasoning_budget_end", options.reasoning_budget_end, phase.mutable_end()));
  status.Update(SetTokens("reasoning_budget_forced", options.reasoning_budget_forced, phase.mutable_then()));
  return status;
}

absl::Status SetLeast(const SamplingOptions& options, v1::SamplingParameters* parameters) {
  if (options.min_keep <= 1) return absl::OkStatus();
  if (options.top_n_sigma >= 0) return absl::InvalidArgumentError("min_keep: top_n_sigma of llama.cpp ignores it");
  if (options.top_k > 0 && options.top_k < options.min_keep) {
    return absl::InvalidArgumentError(absl::StrCat("min_keep: top_k of llama.cpp ignores it, and is ", options.top_k));
  }
  parameters->set_min_keep(static_cast<uint32_t>(options.min_keep));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::SamplingParameters> ToParameters(const SamplingOptions& options) {
  if (options.penalty_last_n < -1) return absl::InvalidArgumentError("penalty_last_n: -1 or more");
  v1::SamplingParameters parameters;
  SetPenalties(options, &parameters);
  if (absl::Status status = SetBias(options, &parameters); !status.ok()) return status;
  if (absl::Status status = SetBudget(options, &parameters); !status.ok()) return status;
  if (options.temp <= 0) {  // greedy: filters do not matter
    parameters.set_temperature(0);
    return parameters;
  }
  SetTemperature(options, &parameters);
  if (options.mirostat != 0) {  // replaces all filters, as in llama.cpp
    parameters.mutable_mirostat()->set_version(static_cast<uint32_t>(options.mirostat));
    parameters.mutable_mirostat()->set_tau(options.mirostat_tau);
    parameters.mutable_mirostat()->set_eta(options.mirostat_eta);
    return parameters;
  }
  if (absl::Status status = SetLeast(options, &parameters); !status.ok()) return status;
  const int filters = SetFilters(options, &parameters);
  if (options.adaptive_target >= 0) {
    parameters.mutable_adaptive_p()->set_target(options.adaptive_target);
    parameters.mutable_adaptive_p()->set_decay(options.adaptive_decay);
  }
  // llama.cpp filters before the temperature, in its own order. This makes no difference for a single filter that
  // depends on ranks alone, or at temperature 1.
  if (filters > 1 || (filters == 1 && options.temp != 1 && !parameters.has_top_k())) {
    parameters.mutable_chain()->set_preset(v1::Chain::PRESET_LLAMA_CPP);
  }
  return parameters;
}

}  // namespace sortition::engines::llama_cpp
