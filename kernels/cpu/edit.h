// Masks, bans, bias and penalties, laid over a row.
#pragma once

#include "kernels/cpu/row_view.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

// Fills `*row` with `raw` after the request's changes; without any, it is `raw` itself. False if a changed logit fails
// the row (`answer` says which). O(edits), O(vocabulary / 64) words, and the groups whose maximum may have moved. If
// the request needs first tokens only, the row may have no others (list_first.h).
bool ChangeRow(const Kernels& kernels, const RowRequest& request, const RowView& raw, Scratch* scratch, RowView* row,
               RowOutput* answer);

}  // namespace sortition::kernels::cpu
