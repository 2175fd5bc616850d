// Decides which drafts of a row are accepted, from the outputs of its positions.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "kernels/row.h"
#include "service/refusal.h"
#include "service/text/row_plan.h"
#include "service/text/row_result.h"

namespace sortition::service {

// A kernel's output for a position, or the refusal of a position that no kernel has run.
using PositionOutput = std::variant<kernels::RowOutput, Refusal>;

// A position that the result needs, and that failed.
struct FailedPosition {
  uint32_t index = 0;
  PositionOutput why;  // a refusal, or an output with an error
};

// Knows the accepted drafts at which a walk ends: a stop token, or a draft that completes a stop sequence or the like.
struct WalkEnds {
  const std::vector<uint32_t>& stop_tokens;  // sorted
  const PositionViews& views;                // of the positions; empty if no option looks at the history

  // Returns true if the walk ends at `token`. After it the text is at `position`.
  bool At(uint32_t token, uint32_t position) const;
};

// Walks from position 0 along the accepted drafts and fills `*result`, which is empty, without its history hash and its
// end. The walk ends at the first position whose draft is rejected, and at an accepted draft that `ends` names. Outputs
// behind that end are ignored and may be errors or absent. `outputs` has one entry for each position and is moved from.
// Returns the position that failed, if the result needs one; `*result` is then of no use. Pure.
std::optional<FailedPosition> Walk(const RowPlan& plan, const WalkEnds& ends,
                                   absl::Span<std::optional<PositionOutput>> outputs, RowResult* result);

// Returns the position that the walk visits after `position`; absent if it ends there. `output` is the output at
// `position`. Pure.
std::optional<uint32_t> PositionAfter(const RowPlan& plan, const WalkEnds& ends, uint32_t position,
                                      const PositionOutput& output);

}  // namespace sortition::service
