// DRY: finds the tokens that would continue a repetition of the history's end, and the length of the repetition
// (llama.cpp's semantics, after p-e-w's proposal of 2024).
#pragma once

#include <cstdint>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "service/text/history/context_index.h"
#include "service/text/history/shared_contexts.h"
#include "service/text/history/token_log.h"
#include "service/text/history_options.h"

namespace sortition::service {

struct DryTerm {
  uint32_t token = 0;
  double term = 0;  // to subtract from its logit
  bool operator==(const DryTerm&) const = default;
};
using DryTermList = absl::InlinedVector<DryTerm, 16>;

// Index of one history, updated with each token. The time of a step is proportional to the longest repetition that
// counts and the tokens found, not to the history. Not thread-safe. `options` outlive it and are on. Every call must
// get the log of the same history, which keeps the window and all that can be cut off.
class Dry {
 public:
  // Indexes the history that `log` holds.
  Dry(const DryOptions& options, const TokenLog& log);

  // Call after the last token of `log` was appended.
  void Pushed(const TokenLog& log);
  // Likewise, for a token that will be cut off before another one is Pushed. Costs less.
  void PushedAhead(const TokenLog& log);
  // Call before the last of the first `length` tokens is cut off; later tokens are cut off already.
  void Popping(const TokenLog& log, uint32_t length);

  // Returns the index of the first `length` tokens of `log`, which were Pushed. O(window), if there is one.
  Dry Fork(const TokenLog& log, uint32_t length);

  // Returns the tokens that DRY penalises at `log`'s next position, by ascending token.
  DryTermList Terms(const TokenLog& log, const DryOptions& options) const;

  uint64_t bytes() const { return moving_ ? moving_->bytes() : whole_.bytes(); }  // without the object itself

 private:
  // Adds what an empty index has of the history.
  void Fill(const TokenLog& log);
  // Returns the window's start in a history of `length` tokens.
  uint32_t Start(uint32_t length) const { return window_ != 0 && length > window_ ? length - window_ : 0; }
  // Finds repetitions that start too close to the window's start for the index to have their contexts.
  void FindAtStart(const TokenLog& log, ContextIndex::AllFound* found) const;

  uint32_t window_;
  uint32_t least_;
  uint32_t reach_;  // tokens; longer repetitions count as this length
  // Positions with at least this many tokens of the window before them; of the history, if there is no window.
  std::optional<ContextIndex> moving_;
  SharedContexts whole_;
};

// Returns the number of last tokens that repetitions may have: the tokens after the last sequence breaker. Returns
// `length` if there is none among the last `length` tokens, or none that affects repetitions of `reach` tokens.
uint32_t RepetitionLimit(const TokenLog& log, const DryOptions& options, uint32_t length, uint32_t reach);

}  // namespace sortition::service
