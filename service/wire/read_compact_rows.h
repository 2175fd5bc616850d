// Compact rows of a step: their bounds, and their tokens and logits as they lie in a payload.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "kernels/compact_row.h"
#include "service/limits.h"
#include "service/refusal.h"
#include "service/text/sequence_spec.h"
#include "service/wire/payload_view.h"
#include "service/wire/step_request.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// Returns the tokens that the compact rows of a step's row list. Thread-safe.
uint64_t CompactTokensOf(const v1::StepRow& row);

// Returns the bytes that the rows of a step list, which its worker may make larger than its payload: rows may share
// their tokens. Thread-safe.
uint64_t CompactBytesOf(const v1::Step& message, uint32_t element_bytes);

// Reads the compact rows of row `index` of a step, one for each of its `positions`, from the step's pairs. Each byte is
// read once. Refuses rows that show by themselves that they are unsound. Rows of a step in shards state the shard's
// tokens, by the ids of the whole row, and no sums. Thread-safe.
std::variant<std::vector<kernels::StatedRow>, Refusal> ReadCompactRows(const v1::StepRow& row, uint32_t index,
                                                                       uint32_t positions, const StepShape& shape,
                                                                       const PayloadView& pairs,
                                                                       const SequenceSpec& spec, const Limits& limits);

}  // namespace sortition::service
