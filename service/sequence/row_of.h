// Builds the kernel request of a sequence's row.
#pragma once

#include <cstdint>

#include "kernels/row.h"
#include "service/sequence/look_ahead.h"
#include "service/sequence/sequence_spec.h"

namespace sortition::service {

// Returns the request for a draw at `position`, without logits, masks, drafts and sampler state. `view` is null if the
// sequence keeps no state. The result refers to `spec` and `*view`. Thread-safe.
kernels::RowRequest RowOf(const SequenceSpec& spec, const PositionView* view, uint32_t position, uint32_t draw_salt);

// Call after masks are set. If the history forces a token, lets the row emit no other token; this overrides all other
// options.
void ForceToken(const PositionView* view, kernels::RowRequest* row);

}  // namespace sortition::service
