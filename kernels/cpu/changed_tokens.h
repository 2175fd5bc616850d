// The changed tokens of a compact row in order, listed one by one, as far as a caller looks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/compact_row.h"
#include "kernels/cpu/candidate.h"
#include "kernels/cpu/scratch.h"
#include "kernels/law/law.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

// Fetches a list of edits, in the order of memory: FindEdit (one_edit.h) would wait for each line that it looks at.
void Fetch(std::span<const LogitEdit> edits);

// Yields the changed tokens in order, up to the place of the last of `first`.
//
// Edits that lower a token leave it behind its place. So the next token is the next one of `first` if it is not edited
// and no edited token before it is left; edited tokens wait in a heap until the tokens of `first` are behind them.
//
// The row has first tokens. No repetition penalty below 1 applies to a token that is looked at (asserted). Refers to
// its arguments. Not thread-safe.
class ChangedTokens {
 public:
  // Raise fails if more edits than these may raise a token.
  static constexpr size_t kMostRaised = 32;

  ChangedTokens(const RowRequest& request, const CompactRow& row, Scratch* scratch);

  // Takes in the tokens that edits may raise. Called before Next, if edits may. Returns false if there are more than
  // kMostRaised or one fails the row; then the object is of no use. Otherwise `*unknown` names the unknown ones, ids
  // ascending.
  bool Raise(std::vector<uint32_t>* unknown);

  // Returns the next token, or kNone. The key of kNone is below every token's.
  static constexpr Candidate kNone = {0};
  Candidate Next();

  // Returns the last place that Next looks at: no later token is returned.
  Candidate last() const { return last_; }

 private:
  const TokenBits* FindKnown(uint32_t token) const;
  void Push(uint32_t bits, uint32_t token);
  Candidate Pop();

  const RowRequest& request_;
  const CompactRow& row_;
  const Candidate last_;
  size_t at_ = 0;                 // index in `first`
  Candidate* const edited_;       // a heap, the first in order before all
  size_t count_ = 0;              // in it
  std::vector<uint32_t> raised_;  // ids ascending
};

}  // namespace sortition::kernels::cpu
