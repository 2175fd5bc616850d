// The answer of one row, encoded, and what it holds in plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/compact_row.h"
#include "service/refusal.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// Says what an encoded answer holds, as far as it is counted.
struct AnswerNote {
  uint32_t row = 0;     // index into Step.rows
  uint32_t parts = 1;   // messages
  uint32_t tokens = 0;  // drawn or accepted
  uint32_t phase = 0;   // of the last of them; 0 outside of phases
  std::optional<Reason> refused = std::nullopt;
  std::string field = {};                                             // of the refusal
  std::optional<kernels::RowRequiredReason> required = std::nullopt;  // of a compact row that is not decided
};

struct RowAnswer {
  std::vector<v1::RowResult> parts;
  AnswerNote note = {};  // `row` and `parts` hold in a StepAnswers alone
};

}  // namespace sortition::service
