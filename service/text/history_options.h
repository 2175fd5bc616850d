// Options of a sequence that look at its history, or at the position in its output, besides the three penalties.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/law/options.h"
#include "service/text/history/breaker_tree.h"
#include "service/text/phases.h"

namespace sortition::service {

// The tokens of the history that penalties count (PenaltyScope in proto/sortition/v1/parameters.proto).
struct PenaltyScope {
  uint32_t window = 0;          // counts only this many last tokens; 0 = all
  uint32_t ignored_prefix = 0;  // tokens of the prompt before this position are not counted
  bool repetition_counts_prompt = true;
  bool frequency_counts_prompt = false;  // presence likewise
  bool operator==(const PenaltyScope&) const = default;
};

struct DryOptions {
  float multiplier = 0;  // 0 = off; the other fields have their defaults then
  float base = 0;
  uint32_t allowed_length = 0;
  uint32_t window = 0;                // looks at only this many last tokens; 0 = all
  std::vector<TokenString> breakers;  // none empty; sorted, distinct

  std::vector<double> terms;     // law::DryTerms
  BreakerTree breaker_tree;      // of `breakers`
  uint32_t longest_breaker = 0;  // tokens
  bool operator==(const DryOptions&) const = default;

  bool on() const { return multiplier != 0; }
  // All repetitions of this length or more count the same.
  uint32_t reach() const { return allowed_length + static_cast<uint32_t>(terms.size()) - 1; }
};

// When the output ends in a repetition: its last Length(p) tokens have a period p in range.
struct RepetitionStop {
  static constexpr uint32_t kMaxPeriod = uint32_t(law::NumberNamed("repetition_stop.max_period").most.value);
  // Tokens that the search looks back at.
  static constexpr uint32_t kMaxLength = uint32_t(law::NumberNamed("repetition_stop.min_length").most.value);

  uint32_t repeats = 0;  // 0 = off; the other fields have their defaults then
  uint32_t min_period = uint32_t(law::NumberNamed("repetition_stop.min_period").value);
  uint32_t max_period = uint32_t(law::NumberNamed("repetition_stop.max_period").value);
  uint32_t min_length = uint32_t(law::NumberNamed("repetition_stop.min_length").value);
  uint32_t min_tokens = 0;  // of output
  bool operator==(const RepetitionStop&) const = default;

  bool on() const { return repeats != 0; }
  // Returns the tokens that repetitions of a period have together.
  uint32_t Length(uint32_t period) const { return std::max(repeats * period, min_length); }
};

// Immutable once compiled. An option that is off has its default value, and lists that stand for sets are sorted; so
// options that mean the same are equal.
struct HistoryOptions {
  PenaltyScope scope;  // the default if no penalty is on
  DryOptions dry;
  uint32_t no_repeat_ngram = 0;  // tokens; 0 = off
  // Strings of at least two tokens, distinct; a bad word of one token is a ban. Sorted by their last token but one,
  // then by their last.
  std::vector<TokenString> bad_words;
  bool bad_words_in_prompt = false;  // a word may begin in the prompt
  uint32_t min_tokens = 0;           // stop tokens are banned until the output has this many; 0 = off
  TokenString stop_tokens;           // sorted, distinct; only with min_tokens
  std::vector<Phase> phases;         // in the order of their numbers
  RepetitionStop repetition_stop;
  // Sorted by their last token, then by all; distinct, none empty.
  std::vector<TokenString> banned_phrases;
  uint64_t watermark_key = 0;    // the noise's; a secret
  uint32_t watermark_width = 0;  // number of last tokens that decide the noise; 0 = off
  bool watermark_skips = false;  // where those tokens have stood before, the draw is not marked
  uint64_t watermark_id = 0;     // the operator's key's, which it replaces in the digest; 0 = the key is the client's

  bool operator==(const HistoryOptions&) const = default;

  // Returns true if an option besides the penalties looks at the history.
  bool on() const {
    return dry.on() || no_repeat_ngram != 0 || !bad_words.empty() || min_tokens != 0 || !phases.empty() ||
           watermark_width != 0 || repetition_stop.on() || !banned_phrases.empty();
  }
  // Number of tokens before a position that must be known to continue from it; UINT32_MAX: all.
  uint32_t lookback() const;
  // The options' part of the digest of a history's identity (proto/history_hash.md); empty for the defaults.
  std::vector<uint64_t> Words() const;
  uint64_t bytes() const;  // without the object itself
};

}  // namespace sortition::service
