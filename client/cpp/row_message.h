// Converts a row's task to its message, and a result's message to the client's result.
#pragma once

#include <cstdint>

#include "sortition/batch.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::client {

// Counts of rows in a step's tensors of masks and of drafters' probabilities.
struct TensorRows {
  uint32_t masks = 0;
  uint32_t drafts = 0;
};

// Sets the salt and the task, if it is not a draw. NameTensors adds masks and dense probabilities.
void DescribeTask(const Row& row, v1::StepRow* message);
// Names the row's masks and probabilities in the step's tensors, after DescribeTask: those from `*taken`, which is
// advanced past them.
void NameTensors(const Row& row, TensorRows* taken, v1::StepRow* message);

// Appends the next part of a row's result to the parts before it. Returns false, and leaves `*whole` as it is, if the
// two are not parts of one result. An empty `*whole` becomes `part`.
bool AppendPart(v1::RowResult part, v1::RowResult* whole);

// Returns a result whose parts have all been appended. The second one copies from a message that may lie in an arena.
RowResult ToRowResult(v1::RowResult&& result);
RowResult ToRowResult(const v1::RowResult& result);

}  // namespace sortition::client
