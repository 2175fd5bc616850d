// DRY: which tokens would go on with a repetition of the end of a history, and how long it is (llama.cpp's semantics,
// after p-e-w's proposal of 2024).
#pragma once

#include <cstdint>
#include <vector>

#include "service/sequence/context_index.h"
#include "service/sequence/history_options.h"
#include "service/sequence/token_log.h"

namespace sortition::service {

struct DryTerm {
  uint32_t token = 0;
  double term = 0;  // to subtract from its logit
  bool operator==(const DryTerm&) const = default;
};

// Of one history, kept step by step: the time of a step is of the order of the longest repetition that counts and of
// the tokens found, not of the history. Not thread-safe. `options` outlive it and are on. Every call is given the log
// of the same history, which keeps the window and what can be cut off.
class Dry {
 public:
  // Of the history that `log` holds.
  Dry(const DryOptions& options, const TokenLog& log);

  // The last token of `log` was appended just now.
  void Pushed(const TokenLog& log);
  // The last of the first `length` tokens is about to be cut off, as those after it were before.
  void Popping(const TokenLog& log, uint32_t length);

  // The tokens that `log`'s next token should not be, by ascending token.
  std::vector<DryTerm> Terms(const TokenLog& log, const DryOptions& options) const;

  uint64_t bytes() const { return index_.bytes(); }  // beside the object itself

 private:
  // Where the window starts in a history of `length` tokens.
  uint32_t Start(uint32_t length) const { return window_ != 0 && length > window_ ? length - window_ : 0; }
  // Repetitions that start closer to the window's start than the index has contexts.
  void FindAtStart(const TokenLog& log, std::vector<ContextIndex::Found>* found) const;

  uint32_t window_;
  uint32_t least_;
  uint32_t reach_;      // tokens; longer repetitions count like one of this length
  ContextIndex index_;  // of the positions with so many tokens of the window before them
};

// How many of the last tokens repetitions may consist of: those after the last sequence breaker, or `length` if there
// is none among the last `length` tokens, or none that matters to repetitions of `reach` tokens.
uint32_t RepetitionLimit(const TokenLog& log, const DryOptions& options, uint32_t length, uint32_t reach);

}  // namespace sortition::service
