// From what the positions of a step's row came to, to what the row came to: which drafts are accepted.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "kernels/row.h"
#include "service/refusal.h"
#include "service/request/position_plan.h"
#include "service/sequence/sequence.h"

namespace sortition::service {

using PositionResult = std::variant<kernels::RowOutput, Refusal>;

// A position without which there is no answer could not be served.
struct FailedPosition {
  uint32_t index = 0;
  PositionResult why;  // a refusal, or an answer with an error
};

// `results`: one for each position of the plan, absent where it was not run; they are moved from. What stands behind
// the first draft that is not accepted has no say, whether it was served, or run at all, or not; nor has what stands
// behind an accepted draft that is one of `stop_tokens`, which are sorted: the text ends with it. Pure.
std::variant<StepOutcome, FailedPosition> Walk(const PositionPlan& plan, const std::vector<uint32_t>& stop_tokens,
                                               absl::Span<std::optional<PositionResult>> results);

// Where that walk goes on from a position that came to `result`; absent where it ends. Pure.
std::optional<uint32_t> PositionAfter(const PositionPlan& plan, const std::vector<uint32_t>& stop_tokens,
                                      uint32_t position, const PositionResult& result);

}  // namespace sortition::service
