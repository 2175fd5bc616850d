// The first tokens of a changed row, for requests that need no others.
#pragma once

#include "kernels/cpu/row_view.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

// True if the request needs only the first tokens of its changed row: a number of them, or those that min-p keeps.
bool LooksAtFirst(const RowRequest& request);

// Fills `*row` with `raw` after the request's changes, but only with the tokens that the request looks at, and some
// more: its other tokens are unknown, and it has no maxima. Edits in groups whose largest logits are below those of the
// listed tokens are not applied: the request does not look at tokens that they move down.
//
// Returns false, without a change of `*row`, if the request needs other tokens, the listed ones are too few, or an edit
// fails the row. O(edits), O(vocabulary / 64) words, and the groups that hold the tokens.
//
// `may_raise`: an edit may move its token up, the repetition penalty aside.
bool ListFirst(const Kernels& kernels, const RowRequest& request, const RowView& raw, bool may_raise, Scratch* scratch,
               RowView* row);

}  // namespace sortition::kernels::cpu
