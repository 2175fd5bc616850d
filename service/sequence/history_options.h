// The options of a sequence that look at its history, or at where it stands in its output, beside the three penalties.
#pragma once

#include <cstdint>
#include <vector>

namespace sortition::service {

using TokenString = std::vector<uint32_t>;

// Which tokens of the history penalties count (PenaltyScope in proto/sortition/v1/parameters.proto).
struct PenaltyScope {
  uint32_t window = 0;          // only the last so many tokens; 0 = all
  uint32_t ignored_prefix = 0;  // tokens of the prompt before this position do not count
  bool repetition_counts_prompt = true;
  bool frequency_counts_prompt = false;  // presence likewise
  bool operator==(const PenaltyScope&) const = default;
};

// Immutable once compiled. An option that is off has the value here that it has when it is absent, and lists that are
// sets are sorted, so that options that mean the same are equal.
struct HistoryOptions {
  PenaltyScope scope;  // the default where no penalty is on

  bool operator==(const HistoryOptions&) const = default;

  // Whether an option beside the penalties looks at the history.
  bool on() const { return false; }
  // How many tokens before a position must be known to go on from it; UINT32_MAX: all of them.
  uint32_t lookback() const { return scope.window; }
  // What they add to the digest of a history's identity (proto/history_hash.md); empty for the default.
  std::vector<uint64_t> Words() const;
  uint64_t bytes() const { return 0; }  // beside the object itself
};

}  // namespace sortition::service
