// Counts of tokens in the scope of penalties and the logit edits that follow from them, kept incrementally.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kernels/row.h"
#include "service/text/sequence_spec.h"

namespace sortition::service {

// Occurrences of a token in the scope of penalties.
struct TokenCount {
  uint32_t in_prompt = 0;
  uint32_t in_output = 0;
  uint32_t all() const { return in_prompt + in_output; }
  bool operator==(const TokenCount&) const = default;
};

// Returns the edit of a token with the bias and ban of `listed` (its other fields are ignored), this count, and this
// DRY term.
kernels::LogitEdit EditOf(const PenaltyScope& scope, const RowOptions& options, const kernels::LogitEdit& listed,
                          TokenCount count, double dry = 0);

// Not thread-safe. Memory is O(tokens that are listed or counted). Every call must get the same scope
// and options.
class PenaltyCounts {
 public:
  using Counts = absl::flat_hash_map<uint32_t, TokenCount>;

  // `counts` has no zeros.
  PenaltyCounts(const PenaltyScope& scope, const RowOptions& options, const Counts& counts);
  // Takes the counts of `other`, which are those of this scope, too. O(tokens).
  PenaltyCounts(const PenaltyScope& scope, const RowOptions& options, const PenaltyCounts& other);

  // Counts one more (`change` 1) or one less (-1) of `token`.
  void Add(const PenaltyScope& scope, const RowOptions& options, uint32_t token, bool output, int32_t change);

  // Sorted by token; counts() is parallel, zero for tokens that are only listed.
  const std::vector<kernels::LogitEdit>& edits() const { return edits_; }
  const std::vector<TokenCount>& counts() const { return counts_; }

  uint64_t bytes() const;

 private:
  std::vector<kernels::LogitEdit> edits_;
  std::vector<TokenCount> counts_;
};

}  // namespace sortition::service
