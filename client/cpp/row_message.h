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

// Sets salt, task and masks. Masks and dense probabilities are the rows of the tensors from `*taken` on, which moves
// behind them.
void DescribeTask(const Row& row, TensorRows* taken, v1::StepRow* message);

// Of an answer that is whole: its pieces have been merged.
RowOutcome OutcomeOf(v1::RowResult result);

}  // namespace sortition::client
