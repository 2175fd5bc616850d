// Masks, bans, bias and penalties, laid over a row.
#pragma once

#include "kernels/cpu/row_view.h"
#include "kernels/cpu/scratch.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

// Fills `*row` with `raw` after its request's changes; without any, it is `raw` itself. False if a changed logit fails
// the row (`answer` says which). O(patches) group reads, plus O(vocabulary / 64) words where there is a mask.
bool ChangeRow(const Row& raw, Scratch* scratch, Row* row, RowAnswer* answer);

}  // namespace sortition::kernels::cpu
