// Counts from tokens.
#include "service/text/scope_counts.h"

#include <algorithm>

namespace sortition::service {

void CountToken(const SequenceSpec& spec, uint32_t prompt_length, uint32_t position, uint32_t token,
                PenaltyCounts::Counts* counts) {
  if (!InScope(spec, prompt_length, position)) return;
  TokenCount& count = (*counts)[token];
  ++(position >= prompt_length ? count.in_output : count.in_prompt);
}

PenaltyCounts::Counts CountScope(const SequenceSpec& spec, uint32_t prompt_length, const TokenLog& log) {
  if (!spec.penalises()) return {};
  const uint32_t window = spec.history.scope.window;
  const uint32_t start = window == 0 || window >= log.length() ? 0 : log.length() - window;
  PenaltyCounts::Counts counts;
  for (uint32_t at = std::max(start, log.kept_from()); at < log.length(); ++at) {
    CountToken(spec, prompt_length, at, log.at(at), &counts);
  }
  return counts;
}

}  // namespace sortition::service
