// Masks, bans, bias and penalties, laid over a row.
#pragma once

#include "kernels/cpu/row_view.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

inline bool IsMasked(const RowRequest& request) {
  return request.has_allowed_tokens || request.allowed_bits != nullptr;
}

// Fills `*row` with `raw` after the request's changes; without any, it is `raw` itself.
// False if a changed logit fails the row (`answer` says which). O(edits), O(vocabulary / 64) words, and the groups
// whose maximum may have moved.
bool ChangeRow(const Kernels& kernels, const RowRequest& request, const Row& raw, Scratch* scratch, Row* row,
               RowOutput* answer);

}  // namespace sortition::kernels::cpu
