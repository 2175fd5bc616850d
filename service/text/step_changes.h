// Changes that options make to the bias, bans and penalties of one step, derived anew from the history at every step.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "kernels/row.h"
#include "service/text/history/history_index.h"
#include "service/text/history/penalty_counts.h"
#include "service/text/history/token_log.h"
#include "service/text/sequence_spec.h"

namespace sortition::service {

struct StepChange {
  uint32_t token = 0;
  bool banned = false;
  double dry = 0;  // subtracted from the logit
  bool operator==(const StepChange&) const = default;
};
using StepChanges = absl::InlinedVector<StepChange, 16>;

// Returns the changes by ascending token, each token once. `index` is null if the options need none.
StepChanges ChangesOfStep(const HistoryOptions& options, const TokenLog& log, uint32_t prompt_length,
                          const HistoryIndex* index);

// Sets `edits` to the edits of `counts`, which has this scope and these options, with `changes`. Reuses its memory.
void MergeChanges(const PenaltyScope& scope, const PhaseOptions& options, const PenaltyCounts& counts,
                  const StepChanges& changes, std::vector<kernels::LogitEdit>* edits);

}  // namespace sortition::service
