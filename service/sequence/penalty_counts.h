// How often tokens occur where penalties count them, and the edits that follow from it, kept incrementally.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kernels/row.h"
#include "service/sequence/sequence_spec.h"

namespace sortition::service {

// How often a token occurs in the scope of penalties.
struct TokenCount {
  uint32_t in_prompt = 0;
  uint32_t in_output = 0;
  uint32_t all() const { return in_prompt + in_output; }
  bool operator==(const TokenCount&) const = default;
};

// The edit of a token with these bias and ban (`listed`; its other fields are not looked at), this count, and this
// term of DRY.
kernels::LogitEdit EditOf(const SequenceSpec& spec, const kernels::LogitEdit& listed, TokenCount count, double dry = 0);

// Not thread-safe. O(tokens that are listed or counted). `spec` is the same in every call.
class PenaltyCounts {
 public:
  using Counts = absl::flat_hash_map<uint32_t, TokenCount>;

  // No count in `counts` is zero.
  PenaltyCounts(const SequenceSpec& spec, const Counts& counts);

  // One more (`change` 1) or one less (-1) of `token`.
  void Add(const SequenceSpec& spec, uint32_t token, bool output, int32_t change);

  // Sorted by token; counts() in parallel, zero for tokens that are listed only.
  const std::vector<kernels::LogitEdit>& edits() const { return edits_; }
  const std::vector<TokenCount>& counts() const { return counts_; }

  // What another set of options starts from.
  Counts ByToken() const;

  uint64_t bytes() const;

 private:
  std::vector<kernels::LogitEdit> edits_;
  std::vector<TokenCount> counts_;
};

}  // namespace sortition::service
