// Penalty scopes, DRY, n-grams, bad words, stop tokens, the watermark, and options that end a text.
#include "service/wire/compile_history_options.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kernels/law/options.h"
#include "kernels/law/watermark.h"
#include "service/checks.h"
#include "service/wire/phase_options.h"

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
  dry.base = asked.has_base() ? asked.base() : float(law::NumberNamed("dry.base").value);
  dry.allowed_length =
      asked.has_allowed_length() ? asked.allowed_length() : uint32_t(law::NumberNamed("dry.allowed_length").value);
  dry.window = asked.window();
  for (const v1::TokenSequence& breaker : asked.sequence_breakers()) dry.breakers.push_back(Tokens(breaker.tokens()));
  std::ranges::sort(dry.breakers);
  dry.breaker_tree = BreakerTree(dry.breakers);
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
  std::ranges::sort(words, {}, [](const TokenString& word) {
    return std::tuple<uint32_t, uint32_t, const TokenString&>(word[word.size() - 2], word.back(), word);
  });
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
  std::ranges::sort(phrases, {}, [](const TokenString& phrase) { return std::tie(phrase.back(), phrase); });
  return phrases;
}

// The checks of one message. Each returns a refusal or nothing.
class Checker {
 public:
  Checker(const Limits& limits, absl::string_view path, uint32_t live_vocabulary)
      : limits_(limits), path_(path), live_vocabulary_(live_vocabulary) {}

  std::string Field(absl::string_view name) const { return absl::StrCat(path_, ".", name); }

  // Checks every number by its line of the table.
  std::optional<Refusal> Numbers(const v1::SamplingParameters& p) const {
    const Bounds bounds(limits_);
#define MOST_Closed(high) Bound()
#define MOST_ZeroOr(high) Bound()
#define MOST_OneOr(high) Bound()
#define MOST_UpTo(high) bounds.high()
#define HISTORY_NUMBER(name, value, form, low, high, text) \
  if (auto refusal = Number(law::NumberNamed(#name), p.has_##name(), p.name(), MOST_##form(high))) return refusal;
#define HISTORY_PART(name, part, type, value, form, low, high, effect)                                          \
  if (auto refusal =                                                                                            \
          Number(law::NumberNamed(#name "." #part), p.name().has_##part(), p.name().part(), MOST_##form(high))) \
    return refusal;
#include "kernels/law/options.inc"
#undef MOST_Closed
#undef MOST_ZeroOr
#undef MOST_OneOr
#undef MOST_UpTo
    return std::nullopt;
  }

  std::optional<Refusal> Stops(const v1::SamplingParameters& p) const {
    if (p.min_tokens() == 0 || p.stop_token_ids_size() > 0) return std::nullopt;
    return Refusal{Reason::kContradiction, Field("min_tokens"), "", "there are no stop_token_ids to hold back"};
  }

  std::optional<Refusal> Watermark(const v1::SamplingParameters& p) const {
    return p.has_watermark() && !p.watermark().has_key() ? std::optional(MissingField(Field("watermark.key")))
                                                         : std::nullopt;
  }

  std::optional<Refusal> Repetition(const v1::RepetitionStop& asked) const {
    const RepetitionStop stop = CompileRepetition(asked);
    if (!stop.on()) return std::nullopt;
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
    const std::string list = Field(name);
    const Bound longest = Bounds::max_string_tokens(), most = Bounds(limits_).max_listed_tokens();
    // None is empty, so there are at least that many tokens.
    if (auto refusal = CheckCount(static_cast<uint64_t>(strings.size()), most, list)) return refusal;
    uint64_t all = 0;
    absl::flat_hash_set<absl::Span<const uint32_t>> distinct;
    distinct.reserve(static_cast<size_t>(strings.size()));
    for (int i = 0; i < strings.size(); ++i) {
      const auto& string = strings[i].tokens();
      const FieldName field(list, i, "tokens");
      if (string.empty()) return MissingField(field);
      if (auto refusal = CheckCount(string.size(), longest, field)) return refusal;
      if (auto refusal = CheckCount(string.size(), most, field)) return refusal;
      for (int at = 0; at < string.size(); ++at) {
        if (auto refusal = CheckToken(string[at], live_vocabulary_, field, at)) return refusal;
      }
      if (!distinct.emplace(string.data(), static_cast<size_t>(string.size())).second) {
        return Refusal{Reason::kContradiction, FieldName(list, i, "").Text(), "", "is listed twice"};
      }
      all += static_cast<uint64_t>(string.size());
    }
    return CheckCount(all, most, list);
  }

 private:
  // `limit`: the one that the number's line names, if it names one.
  std::optional<Refusal> Number(const law::NumberOption& number, bool is_set, double value, const Bound& limit) const {
    const bool is_limited = number.form == law::RangeForm::kUpTo;
    if (!is_set || law::Accepts(number, value, is_limited ? static_cast<double>(limit.value) : number.most.value)) {
      return std::nullopt;
    }
    return Refusal{Reason::kOutOfRange, Field({number.field.data(), number.field.size()}),
                   is_limited ? limit.Text() : law::RangeText(number),
                   absl::StrCat(law::NumberText(value), " is out of range")};
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
  if (auto refusal = check.Numbers(p)) return refusal;
  if (auto refusal = check.Strings(p.dry().sequence_breakers(), "dry.sequence_breakers")) return refusal;
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
