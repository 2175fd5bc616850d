// Words of the options in the history hash: for each option that is on, its field number in SamplingParameters and then
// its values.
#include "service/text/history_options.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace sortition::service {
namespace {

enum Field : uint64_t {
  kPenaltyScope = 8,
  kDry = 32,
  kNoRepeatNgramSize = 33,
  kMinTokens = 34,
  kBadWords = 36,
  kPhases = 37,
  kWatermark = 38,
  kRepetitionStop = 44,
  kBannedPhrases = 45,
};

using Words = std::vector<uint64_t>;

void Add(Words* words, uint64_t word) { words->push_back(word); }

// Adds the string's length, then its elements.
void Add(Words* words, const TokenString& tokens) {
  Add(words, tokens.size());
  for (const uint32_t token : tokens) Add(words, token);
}

void Add(Words* words, const std::vector<TokenString>& strings) {
  Add(words, strings.size());
  for (const TokenString& tokens : strings) Add(words, tokens);
}

void Add(Words* words, const std::vector<Phase>& phases) {
  Add(words, phases.size());
  for (const Phase& phase : phases) {
    for (const TokenString* tokens : {&phase.begin, &phase.end, &phase.then}) Add(words, *tokens);
    Add(words, phase.max_tokens.has_value());
    Add(words, phase.max_tokens.value_or(0));
    const PhaseOptions& options = phase.options;
    for (const float penalty : {options.repetition_penalty, options.frequency_penalty, options.presence_penalty}) {
      Add(words, std::bit_cast<uint32_t>(penalty));
    }
  }
}

template <typename... Parts>
void AddAll(Words* words, const Parts&... parts) {
  (Add(words, parts), ...);
}

uint64_t BytesOf(const std::vector<TokenString>& strings) {
  uint64_t bytes = strings.capacity() * sizeof(TokenString);
  for (const TokenString& tokens : strings) bytes += tokens.capacity() * sizeof(tokens[0]);
  return bytes;
}

}  // namespace

uint32_t HistoryOptions::lookback() const {
  if (no_repeat_ngram != 0 || (dry.on() && dry.window == 0) || watermark_skips)
    return std::numeric_limits<uint32_t>::max();
  uint32_t tokens = std::max({scope.window, dry.window, watermark_width, PhaseTrack::Lookback(phases)});
  for (const TokenString& word : bad_words) tokens = std::max(tokens, static_cast<uint32_t>(word.size()) - 1);
  for (const TokenString& phrase : banned_phrases) tokens = std::max(tokens, static_cast<uint32_t>(phrase.size()));
  if (repetition_stop.on()) tokens = std::max(tokens, repetition_stop.Length(repetition_stop.max_period));
  return tokens;
}

std::vector<uint64_t> HistoryOptions::Words() const {
  std::vector<uint64_t> words;
  if (scope != PenaltyScope()) {
    const uint64_t flags = uint64_t{scope.repetition_counts_prompt} | uint64_t{scope.frequency_counts_prompt} << 1;
    AddAll(&words, kPenaltyScope, scope.window, flags, scope.ignored_prefix);
  }
  if (dry.on()) {
    const uint32_t multiplier = std::bit_cast<uint32_t>(dry.multiplier);
    AddAll(&words, kDry, multiplier, std::bit_cast<uint32_t>(dry.base), dry.allowed_length, dry.window, dry.breakers);
  }
  if (no_repeat_ngram != 0) AddAll(&words, kNoRepeatNgramSize, no_repeat_ngram);
  if (min_tokens != 0) AddAll(&words, kMinTokens, min_tokens, stop_tokens);
  if (!bad_words.empty()) AddAll(&words, kBadWords, uint64_t{bad_words_in_prompt}, bad_words);
  if (!phases.empty()) AddAll(&words, kPhases, phases);
  if (watermark_width != 0) {
    AddAll(&words, kWatermark, watermark_id != 0 ? watermark_id : watermark_key, watermark_width);
    if (watermark_skips || watermark_id != 0) {
      Add(&words, uint64_t{watermark_skips} | uint64_t{watermark_id != 0} << 1);
    }
  }
  if (const RepetitionStop& stop = repetition_stop; stop.on()) {
    AddAll(&words, kRepetitionStop, stop.repeats, stop.min_period, stop.max_period, stop.min_length, stop.min_tokens);
  }
  if (!banned_phrases.empty()) AddAll(&words, kBannedPhrases, banned_phrases);
  return words;
}

uint64_t HistoryOptions::bytes() const {
  uint64_t bytes = BytesOf(dry.breakers) + dry.breaker_tree.bytes() + dry.terms.capacity() * sizeof(double) +
                   BytesOf(bad_words) + BytesOf(banned_phrases) + stop_tokens.capacity() * sizeof(uint32_t) +
                   phases.capacity() * sizeof(Phase);
  for (const Phase& phase : phases) {
    bytes += phase.options.bytes() +
             (phase.begin.capacity() + phase.end.capacity() + phase.then.capacity()) * sizeof(uint32_t);
  }
  return bytes;
}

}  // namespace sortition::service
