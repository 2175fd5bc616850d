// Names the options that mask tokens at a position.
#pragma once

#include <cstdint>
#include <string>

#include "service/text/look_ahead.h"
#include "service/text/row_plan.h"
#include "service/text/sequence_spec.h"

namespace sortition::service {

// Returns ": " and the lists, bans and masks, by their names in the contract, that may mask tokens at the position of
// `view` under mask `mask` of the plan, if it has one. Empty if there are none: then logits, biases and penalties mask
// every token. `view` is null for a sequence without state.
std::string MaskingOptions(const RowPlan& plan, size_t mask, const SequenceSpec& spec, const PositionView* view);

}  // namespace sortition::service
