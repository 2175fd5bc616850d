// Judges rows: tasks, chains and trees of drafts, drafters' probabilities, masks, and the numbers of a row.
#pragma once

#include <cstdint>
#include <optional>

#include "service/checks.h"
#include "service/limits.h"
#include "service/refusal.h"
#include "service/text/row_ask.h"
#include "service/text/row_plan.h"
#include "service/text/sequence_spec.h"

namespace sortition::service {

// Checks that a row's tokens do not make the text longer than its limit. `field` names the row's position.
std::optional<Refusal> CheckTextEnd(const RowPlan& plan, const Limits& limits, const FieldName& field);

// Returns the price of JudgeRow.
uint64_t JudgeCost(const RowAsk& ask);

// Sets `*plan`, which is new or that of a plain draw, to the plan of the row, as far as its sequence's spec decides it:
// packed masks, checkpoints and compact rows are not looked up. A refusal concerns this row alone, and names the field
// of a Step. Thread-safe.
std::optional<Refusal> JudgeRow(const RowAsk& ask, const StepTensors& tensors, const SequenceSpec& spec,
                                const Limits& limits, RowPlan* plan);

// Digests the fields of a step that decide its answer, except its id, its tensors with their content, and its masks:
// StepIntent::options_digest, before masks and a checkpoint are added. Only an owner that remembers a step, to compare
// a retry with it, needs it.
uint64_t DigestOptions(const RowPlan& plan);

}  // namespace sortition::service
