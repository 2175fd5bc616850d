// Counts the tokens in the scope of penalties from a whole history.
#pragma once

#include <cstdint>

#include "service/text/history/penalty_counts.h"
#include "service/text/history/token_log.h"
#include "service/text/sequence_spec.h"

namespace sortition::service {

// Returns true if the counts cover the whole history, so that the kept tokens do not suffice to find them.
inline bool CountsWholeHistory(const SequenceSpec& spec) { return spec.penalises() && spec.history.scope.window == 0; }

// Returns true if a token at `position` counts while it is in the window.
inline bool InScope(const SequenceSpec& spec, uint32_t prompt_length, uint32_t position) {
  return position >= prompt_length || position >= spec.history.scope.ignored_prefix;
}

// Returns the change if a token at `position`, which is in scope, is counted `change` times.
inline CountChange ChangeOf(uint32_t prompt_length, uint32_t position, uint32_t token, int32_t change) {
  return position >= prompt_length ? CountChange{token, 0, change} : CountChange{token, change, 0};
}

// Counts a history. `log` keeps all of its tokens, or at least the scope's window. Empty if no penalty is on.
TokenCounter CountScope(const SequenceSpec& spec, uint32_t prompt_length, const TokenLog& log);

}  // namespace sortition::service
