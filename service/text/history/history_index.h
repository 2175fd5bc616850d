// The indexes that options need to find earlier tokens of a history, updated with each token.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "service/text/history/context_index.h"
#include "service/text/history/dry.h"
#include "service/text/history/shared_contexts.h"
#include "service/text/history/token_log.h"
#include "service/text/history_options.h"

namespace sortition::service {

// Not thread-safe. Every call must get the log of the same history and the same options.
class HistoryIndex {
 public:
  // Needed: true if the options need an index. The other: true if both sets of options need the same one.
  static bool Needed(const HistoryOptions& options) {
    return options.dry.on() || options.no_repeat_ngram != 0 || options.watermark_skips;
  }
  static bool Same(const HistoryOptions& a, const HistoryOptions& b) {
    return a.dry == b.dry && a.no_repeat_ngram == b.no_repeat_ngram && MarkedWidth(a) == MarkedWidth(b);
  }

  // Indexes the history that `log` holds.
  HistoryIndex(const HistoryOptions& options, const TokenLog& log);

  // Call after the last token of `log` was appended.
  void Pushed(const TokenLog& log);
  // Likewise, for a token that will be cut off before another one is Pushed. Costs less.
  void PushedAhead(const TokenLog& log);
  // Call before the last of the first `length` tokens is cut off; later tokens are cut off already.
  void Popping(const TokenLog& log, uint32_t length);

  // Returns the index of the first `length` tokens of `log`, which were Pushed. The two share equal parts.
  std::unique_ptr<HistoryIndex> Fork(const TokenLog& log, uint32_t length);

  DryTermList DryTerms(const TokenLog& log, const HistoryOptions& options) const;
  // Returns the tokens that would complete an n-gram that occurred before, in no order.
  ContextIndex::AllFound RepeatedNgrams(const TokenLog& log) const;
  // Returns the number of tokens that RepeatedNgrams would look at.
  uint64_t LooksForNgrams(const TokenLog& log) const { return ngrams_ ? ngrams_->Looks(log) : 0; }
  // Returns true if the watermark's context, the last tokens, has stood before with a token after it. False for an
  // option that does not ask.
  bool RepeatsMarkedContext(const TokenLog& log) const { return marked_ && marked_->Finds(log); }

  uint64_t bytes() const;

 private:
  HistoryIndex() = default;

  static uint32_t MarkedWidth(const HistoryOptions& options) {
    return options.watermark_skips ? options.watermark_width : 0;
  }

  std::optional<Dry> dry_;
  std::optional<SharedContexts> ngrams_;  // n-grams without their last token
  std::optional<SharedContexts> marked_;  // contexts of the watermark
};

}  // namespace sortition::service
