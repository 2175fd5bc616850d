// Steps of whole rows as steps of compact rows.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/compact_row.h"
#include "kernels/row.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::testing {

// The parts that a row's compact form states.
struct CompactChoice {
  kernels::RowParameters parameters;              // its sequence's
  uint32_t live_vocabulary = 0;                   // likewise
  uint32_t count = 1;                             // first tokens
  std::vector<std::vector<uint32_t>> named = {};  // one a position: further tokens, ascending; empty: none
  bool unit_sum = true;
  bool sum = true;
  uint32_t first_token = 0;  // a shard's; live_vocabulary is then the shard's too
};

// Appends the row's tokens and logits to `*pairs` and describes them in `*message`.
void AppendCompact(const kernels::StatedRow& row, kernels::DType dtype, std::string* pairs, v1::CompactRow* message);

// Returns a step of whole rows, as StepBuilder makes it, with the rows that have a choice in compact form. A row that
// has none, because a logit fails it, stays whole.
v1::StreamRequest WithCompactRows(const v1::StreamRequest& step, std::span<const std::optional<CompactChoice>> choices);

}  // namespace sortition::testing
