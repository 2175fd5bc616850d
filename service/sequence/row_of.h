// A row of a sequence, as its options and its history say.
#pragma once

#include <cstdint>

#include "kernels/row.h"
#include "service/sequence/look_ahead.h"
#include "service/sequence/sequence_spec.h"

namespace sortition::service {

// What a kernel is asked to draw at `position`: all but the logits, the step's masks and drafts, and a sampler's state.
// `view` is null where the sequence keeps no state. Refers to `spec` and to `*view`. Thread-safe.
kernels::RowRequest RowOf(const SequenceSpec& spec, const PositionView* view, uint32_t position, uint32_t draw_salt);

// Once masks are set: where the history forces a token, nothing else can come, whatever other options say.
void ForceToken(const PositionView* view, kernels::RowRequest* row);

}  // namespace sortition::service
