// Counts from tokens.
#include "service/text/history/scope_counts.h"

#include <algorithm>

namespace sortition::service {

TokenCounter CountScope(const SequenceSpec& spec, uint32_t prompt_length, const TokenLog& log) {
  TokenCounter counts;
  if (!spec.penalises()) return counts;
  const uint32_t window = spec.history.scope.window;
  const uint32_t start = window == 0 || window >= log.length() ? 0 : log.length() - window;
  for (uint32_t at = std::max(start, log.kept_from()); at < log.length(); ++at) {
    if (InScope(spec, prompt_length, at)) counts.Count(ChangeOf(prompt_length, at, log.at(at), 1));
  }
  return counts;
}

}  // namespace sortition::service
