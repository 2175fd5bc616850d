// Converts a row's task to its message, and a result's message to the client's result.
#pragma once

#include <cstdint>

#include "client/cpp/batch.h"
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

// Converts a complete result, whose parts have been merged.
RowResult ResultOf(v1::RowResult result);

}  // namespace sortition::client
