// The CPU's kernel: one row of logits in, one output out, with the bits of law::SampleRowReference.
#pragma once

#include "kernels/cpu/row_view.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/target.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

// Samples one row and overwrites `*answer`. Asserts the promises of row.h. An output with an error has no other field
// than `error` and `error_token`. Every target gives the same output. Blocks for the time of the computation: one pass
// over the logits, and the work of the row's options. Thread-safe for distinct scratches and answers.
//
// With segments in `copy`, the logits are read from these, and those that are looked at again are copied to copy.to,
// which is request.logits. Asserts that the segments hold exactly the bytes of the row. If another process changes the
// logits meanwhile, the output belongs to some mixture of old and new logits.
void SampleRow(const Target& target, const RowRequest& request, const RowCopy& copy, Scratch* scratch,
               RowOutput* answer);

// Samples a row that lies at request.logits.
void SampleRow(const Target& target, const RowRequest& request, Scratch* scratch, RowOutput* answer);

// Samples on the best target.
void SampleRow(const RowRequest& request, Scratch* scratch, RowOutput* answer);

}  // namespace sortition::kernels::cpu
