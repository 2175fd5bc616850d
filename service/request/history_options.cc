// Scopes of penalties.
#include "service/request/history_options.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "service/request/checks.h"

namespace sortition::service {
namespace {

bool HasPenalty(const v1::SamplingParameters& p) {
  return (p.has_repetition_penalty() && p.repetition_penalty() != 1) || p.frequency_penalty() != 0 ||
         p.presence_penalty() != 0;
}

// What each engine counts where nothing else is asked for.
PenaltyScope DefaultScope(const v1::Chain& chain) {
  if (chain.preset() == v1::Chain::PRESET_LLAMA_CPP) return {.window = 64, .frequency_counts_prompt = true};
  return {};
}

PenaltyScope CompileScope(const v1::SamplingParameters& p) {
  if (!HasPenalty(p)) return {};
  PenaltyScope scope = DefaultScope(p.chain());
  const v1::PenaltyScope& asked = p.penalty_scope();
  if (asked.has_window()) scope.window = asked.window();
  if (asked.has_ignored_prefix()) scope.ignored_prefix = asked.ignored_prefix();
  if (asked.has_repetition_counts_prompt()) scope.repetition_counts_prompt = asked.repetition_counts_prompt();
  if (asked.has_frequency_counts_prompt()) scope.frequency_counts_prompt = asked.frequency_counts_prompt();
  return scope;
}

}  // namespace

std::optional<Refusal> CheckHistoryOptions(const v1::SamplingParameters& parameters, const Limits& limits,
                                           absl::string_view path, uint32_t) {
  const v1::PenaltyScope& scope = parameters.penalty_scope();
  const auto field = [&](absl::string_view name) { return absl::StrCat(path, ".", name); };
  const std::optional<Refusal> checks[] = {
      CheckRange<uint32_t>(scope.window(), 0, limits.max_history, field("penalty_scope.window")),
      CheckRange<uint32_t>(scope.ignored_prefix(), 0, limits.max_history, field("penalty_scope.ignored_prefix")),
  };
  for (const std::optional<Refusal>& refusal : checks) {
    if (refusal) return refusal;
  }
  return std::nullopt;
}

HistoryOptions CompileHistoryOptions(const v1::SamplingParameters& parameters) {
  HistoryOptions options;
  options.scope = CompileScope(parameters);
  return options;
}

}  // namespace sortition::service
