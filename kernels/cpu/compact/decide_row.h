// Decides compact rows on the CPU (kernels/law/COMPACT.md), with the bits of law::SampleCompactRowReference.
#pragma once

#include <optional>
#include <variant>

#include "kernels/compact_row.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/target.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

using Decision = std::variant<RowOutput, RowRequired>;

// Returns the output that the whole row would have, or why the compact row does not decide it. `request.logits` is not
// read and may be null. `row` is sound (law::FindUnsound). `may_raise` is false only if no edit has a bias or a penalty
// above 0 (asserted of the tokens that are looked at). Most draws read the first tokens only and, if edits may raise,
// each edit. Others take the reference's time. Every target decides the same. Thread-safe for distinct scratches.
Decision DecideRow(const Target& target, const RowRequest& request, const CompactRow& row, bool may_raise,
                   Scratch* scratch);

// Decides it on the best target.
Decision DecideRow(const RowRequest& request, const CompactRow& row, bool may_raise, Scratch* scratch);

// Returns the same for a draw that a few of the first tokens decide: without a sampler chain, named tokens and tempered
// logprobs, with more unknown tokens than a refusal names, and filtered by more than a sum over the whole row. Raw
// logprobs need the unit sum and raw_top first tokens. Absent for others, and for some draws that edits raise.
std::optional<Decision> DecideDraw(const Target& target, const RowRequest& request, const CompactRow& row,
                                   bool may_raise, Scratch* scratch);

}  // namespace sortition::kernels::cpu
