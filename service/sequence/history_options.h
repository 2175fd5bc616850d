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

struct DryOptions {
  float multiplier = 0;  // 0 = off, and then the rest has its default
  float base = 0;
  uint32_t allowed_length = 0;
  uint32_t window = 0;                // only the last so many tokens; 0 = all
  std::vector<TokenString> breakers;  // none empty; sorted, distinct

  std::vector<double> terms;     // law::DryTerms
  uint32_t longest_breaker = 0;  // tokens
  bool operator==(const DryOptions&) const = default;

  bool on() const { return multiplier != 0; }
  // Repetitions of more tokens than this count like one of this length.
  uint32_t reach() const { return allowed_length + static_cast<uint32_t>(terms.size()) - 1; }
};

// Immutable once compiled. An option that is off has the value here that it has when it is absent, and lists that are
// sets are sorted, so that options that mean the same are equal.
struct HistoryOptions {
  PenaltyScope scope;  // the default where no penalty is on
  DryOptions dry;
  uint32_t no_repeat_ngram = 0;  // tokens; 0 = off
  // Of two tokens at least; a word of one token is a ban. Sorted by their last token but one, then by the last,
  // distinct.
  std::vector<TokenString> bad_words;
  bool bad_words_in_prompt = false;  // a word may have begun in the prompt
  uint32_t min_tokens = 0;           // stop tokens are banned until the output has so many; 0 = off
  TokenString stop_tokens;           // sorted, distinct; with min_tokens only
  uint32_t forced_start = 0;         // of the output
  TokenString forced_tokens;         // from there on; empty = off
  uint64_t watermark_key = 0;        // of the noise; a secret
  uint32_t watermark_width = 0;      // so many last tokens decide the noise; 0 = off

  bool operator==(const HistoryOptions&) const = default;

  // Whether an option beside the penalties looks at the history.
  bool on() const;
  // How many tokens before a position must be known to go on from it; UINT32_MAX: all of them.
  uint32_t lookback() const;
  // What they add to the digest of a history's identity (proto/history_hash.md); empty for the default.
  std::vector<uint64_t> Words() const;
  uint64_t bytes() const;  // beside the object itself
};

}  // namespace sortition::service
