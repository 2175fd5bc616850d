// What a row asks for as the contract says it, and what the contract answers as the client's outcome.
#pragma once

#include <cstdint>

#include "client/cpp/batch.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::client {

// Rows of a step's tensors of masks and of drafters' probabilities.
struct TensorRows {
  uint32_t masks = 0;
  uint32_t drafts = 0;
};

// Sets the salt, and what is asked for if it is more than a draw; masks and dense probabilities are named later.
void DescribeTask(const Row& row, v1::StepRow* message);
// Names them, once the task is described: the rows of the tensors from `*taken` on, which moves behind them.
void NameTensors(const Row& row, TensorRows* taken, v1::StepRow* message);

// Appends the next part of a row's result to the parts before it. Returns false, and leaves `*whole` as it is, if the
// two are not parts of one result. An empty `*whole` becomes `part`.
bool AppendPart(v1::RowResult part, v1::RowResult* whole);

// Returns a result whose parts have all been appended.
RowResult ResultOf(v1::RowResult result);

}  // namespace sortition::client
