// Finds repetitions and banned phrases at the end of a text, for options that change no token.
#pragma once

#include <cstdint>
#include <optional>

#include "service/text/history/token_log.h"
#include "service/text/history_options.h"

namespace sortition::service {

struct TextEnd {
  bool repeats = false;                 // the output ends in a repetition
  std::optional<uint32_t> phrase_from;  // first position of a banned phrase that ends here
  TokenString phrase;                   // that phrase
  bool operator==(const TextEnd&) const = default;

  // Returns true if a result with accepted drafts ends at this token.
  bool is_last() const { return repeats || phrase_from; }
};

// Returns the end of the text in `log`, whose first `prompt_length` tokens are prompt. It is a function of the last
// options.lookback() tokens, and of no earlier result. Its time does not depend on the history's length: it is a scan
// of the tokens within the longest period, and O(lookback) if the text ends in a repetition. Pure.
TextEnd FindEnd(const HistoryOptions& options, const TokenLog& log, uint32_t prompt_length);

}  // namespace sortition::service
