// The indexes that options need to find earlier tokens of a history, kept step by step.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "service/sequence/context_index.h"
#include "service/sequence/dry.h"
#include "service/sequence/history_options.h"
#include "service/sequence/token_log.h"

namespace sortition::service {

// Not thread-safe. Every call is given the log of the same history and the same options.
class HistoryIndex {
 public:
  // Whether the options need one, and whether an index for the one set of options is one for the other.
  static bool Needed(const HistoryOptions& options) { return options.dry.on() || options.no_repeat_ngram != 0; }
  static bool Same(const HistoryOptions& a, const HistoryOptions& b) {
    return a.dry == b.dry && a.no_repeat_ngram == b.no_repeat_ngram;
  }

  // Of the history that `log` holds.
  HistoryIndex(const HistoryOptions& options, const TokenLog& log);

  // The last token of `log` was appended just now.
  void Pushed(const TokenLog& log);
  // The last of the first `length` tokens is about to be cut off, as those after it were before.
  void Popping(const TokenLog& log, uint32_t length);

  std::vector<DryTerm> DryTerms(const TokenLog& log, const HistoryOptions& options) const;
  // Tokens that would complete an n-gram that occurred; in no order.
  std::vector<uint32_t> RepeatedNgrams(const TokenLog& log) const;

  uint64_t bytes() const;

 private:
  std::optional<Dry> dry_;
  uint32_t ngram_prefix_;  // tokens of an n-gram but the last
  std::optional<ContextIndex> ngrams_;
};

}  // namespace sortition::service
