// The indexes that options need to find earlier tokens of a history, updated with each token.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "service/sequence/context_index.h"
#include "service/sequence/dry.h"
#include "service/sequence/history_options.h"
#include "service/sequence/token_log.h"

namespace sortition::service {

// Not thread-safe. Every call must get the log of the same history and the same options.
class HistoryIndex {
 public:
  // Needed: true if the options need an index. The other: true if both sets of options need the same one.
  static bool Needed(const HistoryOptions& options) { return options.dry.on() || options.no_repeat_ngram != 0; }
  static bool Same(const HistoryOptions& a, const HistoryOptions& b) {
    return a.dry == b.dry && a.no_repeat_ngram == b.no_repeat_ngram;
  }

  // Indexes the history that `log` holds.
  HistoryIndex(const HistoryOptions& options, const TokenLog& log);

  // Call after the last token of `log` was appended.
  void Pushed(const TokenLog& log);
  // Call before the last of the first `length` tokens is cut off; later tokens are cut off already.
  void Popping(const TokenLog& log, uint32_t length);

  std::vector<DryTerm> DryTerms(const TokenLog& log, const HistoryOptions& options) const;
  // Returns the tokens that would complete an n-gram that occurred before, in no order.
  std::vector<uint32_t> RepeatedNgrams(const TokenLog& log) const;

  uint64_t bytes() const;

 private:
  std::optional<Dry> dry_;
  uint32_t ngram_prefix_;  // length of an n-gram without its last token
  std::optional<ContextIndex> ngrams_;
};

}  // namespace sortition::service
