// Counts of tokens in the scope of penalties and the logit edits that follow from them, kept incrementally.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/row.h"
#include "service/text/sequence_spec.h"

namespace sortition::service {

// Occurrences of a token in the scope of penalties.
struct TokenOccurrences {
  uint32_t in_prompt = 0;
  uint32_t in_output = 0;
  uint32_t all() const { return in_prompt + in_output; }
  bool operator==(const TokenOccurrences&) const = default;
};

// Occurrences that a token gains; less than 0: that it loses.
struct CountChange {
  uint32_t token = 0;
  int32_t in_prompt = 0;
  int32_t in_output = 0;
  bool Reverts(const CountChange& other) const {
    return token == other.token && in_prompt == -other.in_prompt && in_output == -other.in_output;
  }
};

// Sorts the changes by token and makes one of those of a token. O(changes).
void SumChanges(std::vector<CountChange>* changes);

// Returns the edit of a token with the bias and ban of `listed` (its other fields are ignored), this count, and this
// DRY term.
kernels::LogitEdit MakeEdit(const PenaltyScope& scope, const PhaseOptions& options, const kernels::LogitEdit& listed,
                            TokenOccurrences count, double dry = 0);

// Not thread-safe. Memory is O(tokens that are listed or counted). Every call must get the same scope
// and options.
class PenaltyCounts {
 public:
  // Counts nothing.
  PenaltyCounts(const PenaltyScope& scope, const PhaseOptions& options);
  // Takes the counts of `other`, which are those of this scope, too. O(tokens).
  PenaltyCounts(const PenaltyScope& scope, const PhaseOptions& options, const PenaltyCounts& other);

  // Applies the changes and empties their list. O(changes * log tokens) if no token comes or goes, else O(tokens), too.
  void Apply(const PenaltyScope& scope, const PhaseOptions& options, std::vector<CountChange>* changes);

  // Sorted by token; counts() is parallel, zero for tokens that are only listed.
  const std::vector<kernels::LogitEdit>& edits() const { return edits_; }
  const std::vector<TokenOccurrences>& counts() const { return counts_; }
  TokenOccurrences count(uint32_t token) const;

  uint64_t bytes() const;

 private:
  void Erase();
  void Insert(const std::vector<kernels::LogitEdit>& edits, const std::vector<TokenOccurrences>& counts);

  std::vector<kernels::LogitEdit> edits_;
  std::vector<TokenOccurrences> counts_;
};

}  // namespace sortition::service
