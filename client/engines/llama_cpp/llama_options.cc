// Converts llama.cpp's options to the contract's.
#include "client/engines/llama_cpp/llama_options.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace sortition::engines::llama_cpp {
namespace {

void SetPenalties(const SamplingOptions& options, v1::SamplingParameters* parameters) {
  const bool on = options.penalty_repeat != 1 || options.penalty_freq != 0 || options.penalty_present != 0;
  if (!on || options.penalty_last_n <= 0) return;
  if (options.penalty_repeat != 1) parameters->set_repetition_penalty(options.penalty_repeat);
  if (options.penalty_freq != 0) parameters->set_frequency_penalty(options.penalty_freq);
  if (options.penalty_present != 0) parameters->set_presence_penalty(options.penalty_present);
  // llama.cpp does not distinguish between prompt and output.
  v1::PenaltyScope* scope = parameters->mutable_penalty_scope();
  scope->set_window(static_cast<uint32_t>(options.penalty_last_n));
  if (options.penalty_freq != 0 || options.penalty_present != 0) scope->set_frequency_counts_prompt(true);
}

// Sets the filters, and returns the number of filters with a result that depends on the stages before.
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

// llama.cpp's default order of the samplers that have a counterpart.
constexpr std::array<std::string_view, 8> kDefaultOrder = {"penalties", "top_n_sigma", "top_k", "typ_p",
                                                           "top_p",     "min_p",       "xtc",   "temperature"};

// Returns the options with llama.cpp's off value for each sampler that `list` does not name.
SamplingOptions WithoutUnlisted(SamplingOptions options, const std::vector<std::string>& list) {
  const auto listed = [&](std::string_view name) { return std::find(list.begin(), list.end(), name) != list.end(); };
  if (!listed("penalties")) options.penalty_last_n = 0;
  if (!listed("top_n_sigma")) options.top_n_sigma = -1;
  if (!listed("top_k")) options.top_k = 0;
  if (!listed("typ_p")) options.typ_p = 1;
  if (!listed("top_p")) options.top_p = 1;
  if (!listed("min_p")) options.min_p = 0;
  if (!listed("xtc")) options.xtc_probability = 0;
  if (!listed("adaptive_p")) options.adaptive_target = -1;
  if (!listed("temperature")) options.temp = 1, options.dynatemp_range = 0;
  return options;
}

// Returns the contract's name of a sampler that is on, or none.
std::string_view NameIfOn(std::string_view name, const v1::SamplingParameters& parameters) {
  const std::array<std::pair<std::string_view, std::pair<std::string_view, bool>>, 8> names = {{
      {"top_n_sigma", {"top_n_sigma", parameters.has_top_n_sigma()}},
      {"top_k", {"top_k", parameters.has_top_k()}},
      {"typ_p", {"typical_p", parameters.has_typical_p()}},
      {"top_p", {"top_p", parameters.has_top_p()}},
      {"min_p", {"min_p", parameters.has_min_p()}},
      {"xtc", {"xtc", parameters.has_xtc()}},
      {"temperature", {"temperature", parameters.temperature() != 1 || parameters.has_dynamic_temperature()}},
      {"adaptive_p", {"adaptive_p", parameters.has_adaptive_p()}},
  }};
  for (const auto& [theirs, ours] : names) {
    if (theirs == name && ours.second) return ours.first;
  }
  return {};
}

bool HasPenalties(const v1::SamplingParameters& parameters) {
  return parameters.has_repetition_penalty() || parameters.has_frequency_penalty() || parameters.has_presence_penalty();
}

// Sets the order of the listed samplers that are on, unless it equals the preset's.
absl::Status SetOrder(const std::vector<std::string>& list, v1::SamplingParameters* parameters) {
  std::vector<std::string_view> on;
  for (const std::string& name : list) {
    if (name == "penalties" && HasPenalties(*parameters) && !on.empty()) {
      return absl::InvalidArgumentError("samplers: penalties come before all filters and the temperature");
    }
    const std::string_view ours = NameIfOn(name, *parameters);
    if (ours.empty()) continue;
    if (std::find(on.begin(), on.end(), ours) != on.end()) {
      return absl::InvalidArgumentError(absl::StrCat("samplers: ", name, " is in the list twice"));
    }
    on.push_back(ours);
  }
  // llama.cpp applies it last, wherever it is in the list.
  const auto last = std::find(on.begin(), on.end(), "adaptive_p");
  if (last != on.end()) std::rotate(last, last + 1, on.end());
  if (on.empty()) return absl::OkStatus();
  auto* order = parameters->mutable_chain()->mutable_explicit_();
  for (const std::string_view name : on) order->add_samplers(std::string(name));
  return absl::OkStatus();
}

bool IsDefaultOrder(const std::vector<std::string>& list) {
  auto next = kDefaultOrder.begin();
  for (const std::string& name : list) {
    if (name == "dry" || name == "adaptive_p") continue;
    next = std::find(next, kDefaultOrder.end(), name);
    if (next == kDefaultOrder.end()) return false;
    ++next;
  }
  return true;
}

// Refuses entries of the list that have a meaning for llama.cpp and no counterpart here.
absl::Status CheckList(const SamplingOptions& options, const std::vector<std::string>& list) {
  for (const std::string& name : list) {
    if (name == "infill") return absl::InvalidArgumentError("samplers: infill has no counterpart");
  }
  // llama.cpp's greedy choice is among the tokens that these leave, which may lack the most probable one.
  if (options.temp <= 0 && options.mirostat == 0) {
    if (options.xtc_probability != 0) return absl::InvalidArgumentError("xtc_probability: 0 beside temperature 0");
    if (options.typ_p < 1) return absl::InvalidArgumentError("typical_p: 1 beside temperature 0");
  }
  return absl::OkStatus();
}

absl::Status SetMinKeep(const SamplingOptions& options, v1::SamplingParameters* parameters) {
  if (options.min_keep < 2) return absl::OkStatus();
  if (options.top_n_sigma >= 0 || (options.top_k > 0 && options.top_k < options.min_keep)) {
    return absl::InvalidArgumentError("min_keep: at most top_k, and 1 beside top_n_sigma, which do not look at it");
  }
  parameters->set_min_keep(static_cast<uint32_t>(options.min_keep));
  return absl::OkStatus();
}

absl::StatusOr<v1::SamplingParameters> ParametersOf(const SamplingOptions& options) {
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
  if (absl::Status status = SetMinKeep(options, &parameters); !status.ok()) return status;
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

}  // namespace

absl::StatusOr<v1::SamplingParameters> ToParameters(const SamplingOptions& options) {
  if (!options.samplers) return ParametersOf(options);
  SamplingOptions listed = options;
  if (options.mirostat == 0) {
    listed = WithoutUnlisted(options, *options.samplers);
  } else {
    listed.penalty_last_n = 0;  // with mirostat llama.cpp applies none
  }
  if (absl::Status status = CheckList(listed, *options.samplers); !status.ok()) return status;
  auto parameters = ParametersOf(listed);
  if (!parameters.ok() || options.mirostat != 0 || parameters->temperature() == 0) return parameters;
  if (IsDefaultOrder(*options.samplers)) return parameters;
  parameters->clear_chain();
  if (absl::Status status = SetOrder(*options.samplers, &*parameters); !status.ok()) return status;
  return parameters;
}

}  // namespace sortition::engines::llama_cpp
