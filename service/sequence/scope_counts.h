// Counting tokens in the scope of penalties from a history, where they are not counted step by step.
#pragma once

#include <cstdint>
#include <optional>

#include "service/sequence/penalty_counts.h"
#include "service/sequence/sequence_snapshot.h"
#include "service/sequence/sequence_spec.h"
#include "service/sequence/token_log.h"

namespace sortition::service {

// Whether the counts are those of the whole history, so that the kept tokens do not tell them.
inline bool CountsWholeHistory(const SequenceSpec& spec) { return spec.penalises() && spec.history.scope.window == 0; }

// Whether a token at `position` counts while it is in the window.
inline bool InScope(const SequenceSpec& spec, uint32_t prompt_length, uint32_t position) {
  return position >= prompt_length || position >= spec.history.scope.ignored_prefix;
}

// One more token, which stands at `position`, as far as it counts. Windows are not looked at.
void CountToken(const SequenceSpec& spec, uint32_t prompt_length, uint32_t position, uint32_t token,
                PenaltyCounts::Counts* counts);

// Those of the history that `log` keeps all of, or at least the scope's window. None where nothing penalises.
PenaltyCounts::Counts CountScope(const SequenceSpec& spec, uint32_t prompt_length, const TokenLog& log);

// Those that belong to a snapshot, whose kept tokens are `log`; nothing if it contradicts itself.
std::optional<PenaltyCounts::Counts> CountsOf(const SequenceSnapshot& snapshot, const SequenceSpec& spec,
                                              const TokenLog& log);

}  // namespace sortition::service
