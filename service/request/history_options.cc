// Penalty scopes, DRY, n-grams, bad words, stop tokens, the watermark, and what ends a text.
#include "service/request/history_options.h"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/law/dry.h"
#include "kernels/law/watermark.h"
#include "service/request/checks.h"
#include "service/request/phase_options.h"

namespace sortition::service {
namespace {

bool HasPenalty(const v1::SamplingParameters& p) {
  return (p.has_repetition_penalty() && p.repetition_penalty() != 1) || p.frequency_penalty() != 0 ||
         p.presence_penalty() != 0 ||
         std::ranges::any_of(CompilePhases(p), [](const Phase& phase) { return phase.options.penalises(); });
}

// Returns the scope that the preset's engine has by default.
PenaltyScope DefaultScope(const v1::Chain& chain) {
  if (chain.preset() == v1::Chain::PRESET_LLAMA_CPP) return {.window = 64, .frequency_counts_prompt = true};
  return {};
}

PenaltyScope CompileScope(const v1::SamplingParameters& p) {
  if (!HasPenalty(p)) return {};
  PenaltyScope scope = DefaultScope(p.chain());
  const v1::PenaltyScope& asked = p.penalty_scope();
  if (asked.has_window()) scope.window = asked.window();
  if (asked.has_ignored_prefix()) scope.ignored_prefix = asked.ignored_prefix();
  if (asked.has_repetition_counts_prompt()) scope.repetition_counts_prompt = asked.repetition_counts_prompt();
  if (asked.has_frequency_counts_prompt()) scope.frequency_counts_prompt = asked.frequency_counts_prompt();
  return scope;
}

TokenString Tokens(const google::protobuf::RepeatedField<uint32_t>& tokens) { return {tokens.begin(), tokens.end()}; }

using TokenSequences = google::protobuf::RepeatedPtrField<v1::TokenSequence>;

DryOptions CompileDry(const v1::Dry& asked) {
  DryOptions dry;
  if (asked.multiplier() == 0) return dry;
  dry.multiplier = asked.multiplier();
  dry.base = asked.has_base() ? asked.base() : law::kDefaultDryBase;
  dry.allowed_length = asked.has_allowed_length() ? asked.allowed_length() : law::kDefaultDryAllowedLength;
  dry.window = asked.window();
  for (const v1::TokenSequence& breaker : asked.sequence_breakers()) dry.breakers.push_back(Tokens(breaker.tokens()));
  std::ranges::sort(dry.breakers);
  for (const TokenString& breaker : dry.breakers) {
    dry.longest_breaker = std::max(dry.longest_breaker, static_cast<uint32_t>(breaker.size()));
  }
  return dry;
}

std::vector<TokenString> CompileBadWords(const TokenSequences& asked) {
  std::vector<TokenString> words;
  for (const v1::TokenSequence& word : asked) {
    if (word.tokens_size() > 1) words.push_back(Tokens(word.tokens()));
  }
  std::ranges::sort(words, {},
                    [](const TokenString& word) { return std::tuple(word[word.size() - 2], word.back(), word); });
  return words;
}

RepetitionStop CompileRepetition(const v1::RepetitionStop& asked) {
  RepetitionStop stop;
  if (asked.repeats() == 0) return stop;
  stop.repeats = asked.repeats();
  if (asked.has_min_period()) stop.min_period = asked.min_period();
  if (asked.has_max_period()) stop.max_period = asked.max_period();
  if (asked.has_min_length()) stop.min_length = asked.min_length();
  stop.min_tokens = asked.min_tokens();
  return stop;
}

std::vector<TokenString> CompilePhrases(const TokenSequences& asked) {
  std::vector<TokenString> phrases;
  for (const v1::TokenSequence& phrase : asked) phrases.push_back(Tokens(phrase.tokens()));
  std::ranges::sort(phrases, {}, [](const TokenString& phrase) { return std::tuple(phrase.back(), phrase); });
  return phrases;
}

// The checks of one message. Each returns a refusal or nothing.
class Checker {
 public:
  Checker(const Limits& limits, absl::string_view path, uint32_t live_vocabulary)
      : limits_(limits), path_(path), live_vocabulary_(live_vocabulary) {}

  std::string Field(absl::string_view name) const { return absl::StrCat(path_, ".", name); }

  std::optional<Refusal> Scope(const v1::PenaltyScope& scope) const {
    if (auto refusal = UpToHistory(scope.window(), "penalty_scope.window")) return refusal;
    return UpToHistory(scope.ignored_prefix(), "penalty_scope.ignored_prefix");
  }

  std::optional<Refusal> Dry(const v1::Dry& dry) const {
    if (dry.multiplier() != 0 &&
        !(dry.multiplier() >= law::kMinDryMultiplier && dry.multiplier() <= law::kMaxDryMultiplier)) {
      return OutOfRange("dry.multiplier", absl::StrCat("0 or ", law::kMinDryMultiplier, "..", law::kMaxDryMultiplier),
                        dry.multiplier());
    }
    if (dry.has_base() && dry.base() != 1 && !(dry.base() >= law::kMinDryBase && dry.base() <= law::kMaxDryBase)) {
      return OutOfRange("dry.base", absl::StrCat("1 or ", law::kMinDryBase, "..", law::kMaxDryBase), dry.base());
    }
    if (dry.has_allowed_length()) {
      if (auto refusal =
              CheckRange<uint32_t>(dry.allowed_length(), 1, law::kMaxDryAllowedLength, Field("dry.allowed_length"))) {
        return refusal;
      }
    }
    if (auto refusal = UpToHistory(dry.window(), "dry.window")) return refusal;
    return Strings(dry.sequence_breakers(), "dry.sequence_breakers");
  }

  std::optional<Refusal> Stops(const v1::SamplingParameters& p) const {
    if (auto refusal = UpToHistory(p.min_tokens(), "min_tokens")) return refusal;
    if (p.min_tokens() == 0 || p.stop_token_ids_size() > 0) return std::nullopt;
    return Refusal{Reason::kContradiction, Field("min_tokens"), "", "there are no stop_token_ids to hold back"};
  }

  std::optional<Refusal> Watermark(const v1::SamplingParameters& p) const {
    if (!p.has_watermark()) return std::nullopt;
    if (!p.watermark().has_key()) return MissingField(Field("watermark.key"));
    if (!p.watermark().has_context_width()) return std::nullopt;
    return CheckRange<uint32_t>(p.watermark().context_width(), 1, law::kMaxWatermarkWidth,
                                Field("watermark.context_width"));
  }

  std::optional<Refusal> Repetition(const v1::RepetitionStop& asked) const {
    const RepetitionStop stop = CompileRepetition(asked);
    const auto in_range = [&](absl::string_view name, uint32_t value, uint32_t low, uint32_t high) {
      return CheckRange(value, low, high, Field(absl::StrCat("repetition_stop.", name)));
    };
    if (asked.has_min_period()) {
      if (auto refusal = in_range("min_period", asked.min_period(), 1, RepetitionStop::kMaxPeriod)) return refusal;
    }
    if (asked.has_max_period()) {
      if (auto refusal = in_range("max_period", asked.max_period(), 1, RepetitionStop::kMaxPeriod)) return refusal;
    }
    if (auto refusal = in_range("min_length", asked.min_length(), 0, RepetitionStop::kMaxLength)) return refusal;
    if (auto refusal = UpToHistory(asked.min_tokens(), "repetition_stop.min_tokens")) return refusal;
    if (!stop.on()) return std::nullopt;
    if (auto refusal = in_range("repeats", stop.repeats, 2, RepetitionStop::kMaxLength)) return refusal;
    if (stop.min_period > stop.max_period) {
      return Refusal{Reason::kContradiction, Field("repetition_stop.min_period"), absl::StrCat("<= ", stop.max_period),
                     "is above max_period, so no period is in range"};
    }
    if (stop.repeats * stop.max_period <= RepetitionStop::kMaxLength) return std::nullopt;
    return Refusal{Reason::kOutOfRange, Field("repetition_stop.repeats"),
                   absl::StrCat("<= ", RepetitionStop::kMaxLength / stop.max_period),
                   absl::StrCat(stop.repeats, " periods of up to ", stop.max_period, " tokens are more than ",
                                RepetitionStop::kMaxLength, " tokens")};
  }

  // Checks token sequences that form a set.
  std::optional<Refusal> Strings(const TokenSequences& strings, absl::string_view name) const {
    uint64_t tokens = 0;
    std::set<TokenString> distinct;
    for (int i = 0; i < strings.size(); ++i) {
      const auto& string = strings[i].tokens();
      const std::string field = absl::StrCat(Field(name), "[", i, "]");
      if (string.empty()) return MissingField(field + ".tokens");
      if (auto refusal = CheckCount(string.size(), Bounds::max_string_tokens(), field + ".tokens")) return refusal;
      if (auto refusal = Live(string, field + ".tokens")) return refusal;
      if (!distinct.insert(Tokens(string)).second) {
        return Refusal{Reason::kContradiction, field, "", "is listed twice"};
      }
      tokens += static_cast<uint64_t>(string.size());
    }
    return CheckCount(tokens, Bounds(limits_).max_listed_tokens(), Field(name));
  }

  std::optional<Refusal> UpToHistory(uint32_t value, absl::string_view name) const {
    return CheckRange(value, 0, Bounds(limits_).max_history(), Field(name));
  }

 private:
  Refusal OutOfRange(absl::string_view name, std::string limit, float value) const {
    return {Reason::kOutOfRange, Field(name), std::move(limit), absl::StrCat(value, " is out of range")};
  }
  std::optional<Refusal> Live(const google::protobuf::RepeatedField<uint32_t>& tokens, const std::string& field) const {
    if (auto refusal = CheckCount(tokens.size(), Bounds(limits_).max_listed_tokens(), field)) return refusal;
    for (int i = 0; i < tokens.size(); ++i) {
      if (auto refusal = CheckToken(tokens[i], live_vocabulary_, field, i)) return refusal;
    }
    return std::nullopt;
  }

  const Limits& limits_;
  const absl::string_view path_;
  const uint32_t live_vocabulary_;
};

}  // namespace

std::optional<uint32_t> PenaltyWindow(const v1::SamplingParameters& parameters) {
  if (!HasPenalty(parameters)) return std::nullopt;
  return CompileScope(parameters).window;
}

std::optional<Refusal> CheckHistoryOptions(const v1::SamplingParameters& p, const Limits& limits,
                                           absl::string_view path, uint32_t live_vocabulary) {
  const Checker check(limits, path, live_vocabulary);
  if (auto refusal = check.Scope(p.penalty_scope())) return refusal;
  if (auto refusal = check.Dry(p.dry())) return refusal;
  const std::string ngram = check.Field("no_repeat_ngram_size");
  if (auto refusal = CheckRange(p.no_repeat_ngram_size(), 0, Bounds::max_string_tokens(), ngram)) return refusal;
  if (auto refusal = check.Stops(p)) return refusal;
  if (auto refusal = check.Strings(p.bad_words(), "bad_words")) return refusal;
  if (auto refusal = CheckPhases(p, limits, path, live_vocabulary)) return refusal;
  if (auto refusal = check.Repetition(p.repetition_stop())) return refusal;
  if (auto refusal = check.Strings(p.banned_phrases(), "banned_phrases")) return refusal;
  return check.Watermark(p);
}

HistoryOptions CompileHistoryOptions(const v1::SamplingParameters& p) {
  HistoryOptions options;
  options.scope = CompileScope(p);
  options.dry = CompileDry(p.dry());
  options.no_repeat_ngram = p.no_repeat_ngram_size();
  options.bad_words = CompileBadWords(p.bad_words());
  options.bad_words_in_prompt = !options.bad_words.empty() && p.chain().preset() == v1::Chain::PRESET_HF;
  options.min_tokens = p.min_tokens();
  if (options.min_tokens != 0) {
    options.stop_tokens = Tokens(p.stop_token_ids());
    std::ranges::sort(options.stop_tokens);
  }
  options.phases = CompilePhases(p);
  options.repetition_stop = CompileRepetition(p.repetition_stop());
  options.banned_phrases = CompilePhrases(p.banned_phrases());
  if (p.has_watermark()) {
    options.watermark_key = p.watermark().key();
    options.watermark_width =
        p.watermark().has_context_width() ? p.watermark().context_width() : law::kDefaultWatermarkWidth;
    options.watermark_skips = p.watermark().skip_repeated_contexts();
  }
  return options;
}

}  // namespace sortition::service
