// The result of a row, which its worker gets, in plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/row.h"
#include "service/text/text_end.h"

namespace sortition::service {

// The result of a draw has one output. That of a verification has those of the accepted drafts and of the token after
// them; that of a score has one for each position.
struct RowResult {
  std::vector<kernels::RowOutput> outputs;  // in the order of the text; at least one; without errors
  std::vector<uint32_t> path;               // the accepted drafts, by their number
  std::vector<bool> matched;                // of each draft: it passed at its own position
  std::vector<uint32_t> phases;             // of each output; empty if the sequence has none
  // Set if the sequence keeps state and the row advances it: with the tokens of `outputs` appended.
  std::optional<uint64_t> history_hash;
  TextEnd end;  // of the text with these tokens; empty if nothing looks at it, and for a score

  uint32_t PhaseOf(size_t output) const { return phases.empty() ? 0 : phases[output]; }

  static RowResult Drawn(kernels::RowOutput output) {
    RowResult result;
    result.outputs.push_back(std::move(output));
    return result;
  }
};

}  // namespace sortition::service
