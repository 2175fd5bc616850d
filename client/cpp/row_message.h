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

// Of an answer that is whole: its pieces have been merged.
RowResult ResultOf(v1::RowResult result);

}  // namespace sortition::client
