// Samplers that look at the history, and masks.
#pragma once

#include "client/bench/logits.h"
#include "client/bench/report.h"

namespace sortition::bench {

// Adds dry_1k, dry_32k, dry_128k, dry_32k_cold, repetition_stop, phase_inactive, phases_inactive_8 and mask. The
// baseline of each is token_f32, timed in turn with it. `logits` are 64 rows of 128,256 floats.
void MeasureHistory(const Logits& logits, size_t rounds, Report* report);

}  // namespace sortition::bench
