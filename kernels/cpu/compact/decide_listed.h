// Decides compact rows of any task, chain and mask: lists the changed tokens as the CPU does, and runs the law's stages
// over the list.
#pragma once

#include <optional>

#include "kernels/compact_row.h"
#include "kernels/cpu/compact/decide_row.h"
#include "kernels/cpu/scratch.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

// Returns what law::SampleCompactRowReference returns; the arguments are those of DecideRow. Reads the listed tokens,
// and each edit if edits may raise or sums are stated. Absent for repetition penalties below 1 that may raise unknown
// tokens, for many edits that raise, for a logit that an edit makes too large, and for refusals that name every edited
// token.
std::optional<Decision> DecideListed(const RowRequest& request, const CompactRow& row, bool may_raise,
                                     Scratch* scratch);

// True if certainly more tokens are unknown, allowed and not banned than a refusal names. Cheap where there is no mask.
bool HasManyUnknown(const RowRequest& request, const CompactRow& row);

}  // namespace sortition::kernels::cpu
