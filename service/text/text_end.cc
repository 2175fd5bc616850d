// Repetitions by the Z algorithm over the reversed output, phrases by their last token.
#include "service/text/text_end.h"

#include <algorithm>
#include <array>
#include <span>

namespace sortition::service {
namespace {

// Searches the output's end for periods, the shortest first. Token i of the reversed output is the one before the last
// i tokens. For a period p, `match` is the number of tokens i = 0, 1, ... in a row with token i + p equal to token i.
// The output's last match + p tokens have this period.
class PeriodSearch {
 public:
  PeriodSearch(const RepetitionStop& options, const TokenLog& log, uint32_t output)
      : options_(options),
        log_(log),
        end_(log.length()),
        last_(log.at(end_ - 1)),
        seen_(std::min(output, options.Length(options.max_period))) {}

  bool Finds() {
    // A period p matches nothing if the token p places back differs from the last one. This skips most periods, a run
    // of tokens at once.
    const uint32_t longest = std::min(options_.max_period, seen_ - 1);
    for (uint32_t period = 1; period <= longest;) {
      const std::span<const uint32_t> run = log_.EndingAt(end_ - period);
      const uint32_t count = std::min(static_cast<uint32_t>(run.size()), longest - period + 1);
      if (FindsIn(run.last(count), period)) return true;
      period += count;
    }
    return false;
  }

 private:
  // Searches periods `period`, `period` + 1, ...; their tokens are `run`'s, from its end.
  bool FindsIn(std::span<const uint32_t> run, uint32_t period) {
    // Counts first, because a compiler makes vector instructions of a sum and not of a search.
    uint32_t equal = 0;
    for (const uint32_t token : run) equal += token == last_;
    for (size_t at = run.size(); equal > 0; ++period) {
      if (run[--at] != last_) continue;
      if (IsPeriod(period)) return true;
      --equal;
    }
    return false;
  }

  // Finds the match of `period`; its first token matches. Together all calls compare each token once: tokens before
  // `matched_to_` are known from the match of `matched_from_`.
  bool IsPeriod(uint32_t period) {
    uint32_t match = 1;
    if (period < matched_to_) match = std::min(matches_[period - matched_from_], matched_to_ - period);
    if (period + match >= matched_to_) {
      while (period + match < seen_ && Reversed(period + match) == Reversed(match)) ++match;
      matched_from_ = period;
      matched_to_ = period + match;
    }
    matches_[period] = match;
    return period >= options_.min_period && period + match >= options_.Length(period);
  }

  uint32_t Reversed(uint32_t index) const { return log_.at(end_ - 1 - index); }

  const RepetitionStop& options_;
  const TokenLog& log_;
  const uint32_t end_;
  const uint32_t last_;
  const uint32_t seen_;  // number of last tokens that are looked at
  uint32_t matched_from_ = 0;
  uint32_t matched_to_ = 0;
  // Set for the periods whose first token matches; no other one is read.
  std::array<uint32_t, RepetitionStop::kMaxPeriod + 1> matches_;
};

// Returns the longest phrase that the output ends in, whose last token is `last`; null if there is none.
const TokenString* PhraseAtEnd(const std::vector<TokenString>& phrases, const TokenLog& log, uint32_t output) {
  const uint32_t last = log.at(log.length() - 1);
  const auto last_of = [](const TokenString& phrase) { return phrase.back(); };
  const TokenString* longest = nullptr;
  for (const TokenString& phrase : std::ranges::equal_range(phrases, last, {}, last_of)) {
    const auto size = static_cast<uint32_t>(phrase.size());
    if (size > output || (longest != nullptr && size < longest->size())) continue;
    if (log.EndsIn(phrase, log.length())) longest = &phrase;
  }
  return longest;
}

}  // namespace

TextEnd FindEnd(const HistoryOptions& options, const TokenLog& log, uint32_t prompt_length) {
  TextEnd end;
  const uint32_t output = log.length() - prompt_length;
  if (output == 0) return end;
  const RepetitionStop& stop = options.repetition_stop;
  if (stop.on() && output >= std::max(stop.min_tokens, stop.Length(stop.min_period))) {
    end.repeats = PeriodSearch(stop, log, output).Finds();
  }
  if (options.banned_phrases.empty()) return end;
  if (const TokenString* const phrase = PhraseAtEnd(options.banned_phrases, log, output)) {
    end.phrase = *phrase;
    end.phrase_from = log.length() - static_cast<uint32_t>(phrase->size());
  }
  return end;
}

}  // namespace sortition::service
