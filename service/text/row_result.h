// The result of a row, which its worker gets, in plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "kernels/row.h"
#include "service/text/text_end.h"

namespace sortition::service {

// A draw's result has one output. A verification's has one for each accepted draft and one for the token after them; a
// score's has one for each position.
struct RowResult {
  absl::InlinedVector<kernels::RowOutput, 1> outputs;  // in the order of the text; at least one; without errors
  std::vector<uint32_t> path;                          // the accepted drafts, by their number
  std::vector<bool> matched;                           // one a draft: it passed at its own position
  std::vector<uint32_t> phases;                        // one an output; empty if the sequence has none
  // Set if the sequence keeps state and the row advances it: with the tokens of `outputs` appended.
  std::optional<uint64_t> history_hash;
  TextEnd end;  // the text's with these tokens; empty if no option needs it, and for a score

  uint32_t PhaseOf(size_t output) const { return phases.empty() ? 0 : phases[output]; }

  static RowResult Drawn(kernels::RowOutput output) {
    RowResult result;
    result.outputs.push_back(std::move(output));
    return result;
  }
};

}  // namespace sortition::service
