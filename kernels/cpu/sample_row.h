// The CPU's kernel: one row of logits in, one answer out, the bits of law::SampleRowReference.
#pragma once

#include "kernels/cpu/row_view.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/target.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

// Samples one row into `*answer`, whatever that held. Asserts the promises of row.h. An answer with an error carries
// nothing but `error` and `error_token`. Every target gives the same answer. Blocks for the time of the computation:
// one pass over the logits, and what the row's options ask for on top. Thread-safe for distinct scratches and answers.
//
// `copy`: where the logits are to be read from, if not at request.logits, which they are copied to on the way: room
// for them, copy.to. Asserts that there are as many. Of logits that are changed meanwhile any answer is right that
// some mixture has.
void SampleRow(const Target& target, const RowRequest& request, const RowCopy& copy, Scratch* scratch,
               RowOutput* answer);

// Of a row that lies at request.logits.
void SampleRow(const Target& target, const RowRequest& request, Scratch* scratch, RowOutput* answer);

// On the best target.
void SampleRow(const RowRequest& request, Scratch* scratch, RowOutput* answer);

}  // namespace sortition::kernels::cpu
