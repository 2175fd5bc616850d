// The one pass over a row's logits that every row pays: group maxima, and the check of the domain.
#pragma once

#include "kernels/cpu/row_view.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

// Makes the row for ReadRow: it has no maxima yet, and its logits are not checked. Refers to `request` and `scratch`.
// An incoming row is copied to request.logits.
RowView LayRow(const RowRequest& request, const RowCopy& copy, Scratch* scratch);

// Returns an empty copy for row.lazy, which groups join when they are looked at. LayRow laid the row; it has segments,
// and LazyCopy::kLeastGroups groups or more.
LazyCopy CopyLazily(Scratch* scratch, const RowView& row);

// Gives `*row`, which LayRow laid, its maxima. False if a logit fails the row: then `answer->error` and `error_token`
// say which. Also false if the row is copied lazily and that has failed.
bool ReadRow(const Kernels& kernels, const RowRequest& request, Scratch* scratch, RowView* row, RowOutput* answer);

// f32 bits, not canonical, of the tensor's element `index`.
uint32_t SentBits(const RowRequest& request, size_t index);

}  // namespace sortition::kernels::cpu
