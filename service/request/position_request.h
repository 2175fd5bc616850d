// The task of a row, validated.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "service/limits.h"
#include "service/refusal.h"
#include "service/request/step_request.h"
#include "service/row/row_plan.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// Returns the number of positions that a row's task has: of tensor rows, or of compact rows.
uint64_t PositionsOf(const v1::StepRow& row);

// Fills `*plan` with the row's task and masks. `index` is the row's in its step. Thread-safe.
std::optional<Refusal> ParsePositions(const v1::StepRow& row, int index, const StepShape& shape,
                                      const SequenceSpec& spec, const Limits& limits, RowPlan* plan);

}  // namespace sortition::service
