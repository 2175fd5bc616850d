// Cost of verifying drafts, compared with drawing tokens.
#pragma once

#include "client/bench/logits.h"
#include "client/bench/report.h"

namespace sortition::bench {

// Adds verify_8: 8 drafts of a chain with the usual options, coupled and all accepted, which takes all of their 9 rows;
// its baseline is the usual token. Adds block_verify_8: the same drafts by block verification, with the drafter's
// probabilities of 16 tokens; its baseline is verify_8. f32 rows, one thread.
void MeasureVerify(const Logits& logits, uint32_t rounds, Report* report);

}  // namespace sortition::bench
