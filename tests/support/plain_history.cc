// Counting, and looking back token by token.
#include "tests/support/plain_history.h"

#include <algorithm>
#include <map>
#include <span>
#include <vector>

#include "google/protobuf/message.h"
#include "kernels/law/dry_terms.h"
#include "kernels/law/parameters.h"
#include "kernels/law/watermark.h"

namespace sortition::testing {
namespace {

using kernels::LogitEdit;

class Edits {
 public:
  LogitEdit& operator[](uint32_t token) {
    LogitEdit& edit = edits_[token];
    edit.token = token;
    return edit;
  }
  std::vector<LogitEdit> Sorted() const {
    std::vector<LogitEdit> sorted;
    for (const auto& [token, edit] : edits_) sorted.push_back(edit);
    return sorted;
  }

 private:
  std::map<uint32_t, LogitEdit> edits_;
};

bool Matches(const std::vector<uint32_t>& tokens, size_t at, const v1::TokenSequence& string) {
  for (int i = 0; i < string.tokens_size(); ++i) {
    if (at + i >= tokens.size() || tokens[at + i] != string.tokens(i)) return false;
  }
  return true;
}

// Returns the number of tokens after the last sequence breaker that starts at or after `from`; all tokens from index
// `from` if there is none.
size_t AfterBreaker(const v1::Dry& dry, const std::vector<uint32_t>& tokens, size_t from) {
  for (size_t at = tokens.size(); at-- > from;) {
    int longest = 0;
    for (const v1::TokenSequence& breaker : dry.sequence_breakers()) {
      if (Matches(tokens, at, breaker)) longest = std::max(longest, breaker.tokens_size());
    }
    if (longest > 0) return tokens.size() - at - longest;
  }
  return tokens.size() - from;
}

// Maps each token to the length of the repetition that it would continue.
std::map<uint32_t, size_t> Repetitions(const v1::Dry& dry, const std::vector<uint32_t>& tokens) {
  const size_t from = dry.window() == 0 || dry.window() >= tokens.size() ? 0 : tokens.size() - dry.window();
  const size_t limit = AfterBreaker(dry, tokens, from);
  const size_t allowed = dry.has_allowed_length() ? dry.allowed_length() : 2;
  std::map<uint32_t, size_t> longest;
  for (size_t at = from + 1; at < tokens.size(); ++at) {
    size_t length = 0;
    while (length < at - from && tokens[at - 1 - length] == tokens[tokens.size() - 1 - length]) ++length;
    length = std::min(length, limit);
    if (length >= allowed) longest[tokens[at]] = std::max(longest[tokens[at]], length);
  }
  for (const v1::TokenSequence& breaker : dry.sequence_breakers()) {
    if (breaker.tokens_size() == 1) longest.erase(breaker.tokens(0));
  }
  return longest;
}

double DryTerm(const v1::Dry& dry, size_t length) {
  const size_t allowed = dry.has_allowed_length() ? dry.allowed_length() : 2;
  const std::vector<double> terms = law::DryTerms(dry.multiplier(), dry.has_base() ? dry.base() : 1.75f);
  return terms[std::min(length - allowed, terms.size() - 1)];
}

std::vector<uint32_t> Banned(const v1::SamplingParameters& p, const std::vector<uint32_t>& tokens,
                             uint32_t prompt_length) {
  std::vector<uint32_t> banned(p.banned_token_ids().begin(), p.banned_token_ids().end());
  if (const size_t n = p.no_repeat_ngram_size(); n != 0) {
    for (size_t at = n - 1; at < tokens.size(); ++at) {
      const bool same =
          std::equal(tokens.begin() + static_cast<ptrdiff_t>(at - (n - 1)), tokens.begin() + static_cast<ptrdiff_t>(at),
                     tokens.end() - static_cast<ptrdiff_t>(n - 1));
      if (same) banned.push_back(tokens[at]);
    }
  }
  const std::vector<uint32_t> output(tokens.begin() + prompt_length, tokens.end());
  const std::vector<uint32_t>& words_in = p.chain().preset() == v1::Chain::PRESET_HF ? tokens : output;
  for (v1::TokenSequence word : p.bad_words()) {
    const uint32_t last = word.tokens(word.tokens_size() - 1);
    word.mutable_tokens()->RemoveLast();
    const size_t begun = static_cast<size_t>(word.tokens_size());
    if (begun <= words_in.size() && Matches(words_in, words_in.size() - begun, word)) banned.push_back(last);
  }
  if (output.size() < p.min_tokens()) {
    banned.insert(banned.end(), p.stop_token_ids().begin(), p.stop_token_ids().end());
  }
  return banned;
}

}  // namespace

std::vector<LogitEdit> PlainEdits(const v1::SamplingParameters& p, const std::vector<uint32_t>& tokens,
                                  uint32_t prompt_length) {
  Edits edits;
  for (const v1::LogitBias& bias : p.logit_bias()) edits[bias.token()].bias = law::CanonicalBits(bias.bias());
  for (const uint32_t token : Banned(p, tokens, prompt_length)) edits[token].flags |= LogitEdit::kBanned;

  const v1::PenaltyScope& scope = p.penalty_scope();
  const bool as_llama_cpp = p.chain().preset() == v1::Chain::PRESET_LLAMA_CPP;
  const uint32_t window = scope.has_window() ? scope.window() : as_llama_cpp ? 64 : 0;
  const bool repeats = p.has_repetition_penalty() && p.repetition_penalty() != 1;
  const bool repetition_in_prompt = !scope.has_repetition_counts_prompt() || scope.repetition_counts_prompt();
  const bool frequency_in_prompt = scope.has_frequency_counts_prompt() ? scope.frequency_counts_prompt() : as_llama_cpp;
  std::map<uint32_t, uint32_t> frequent;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool in_prompt = i < prompt_length;
    if (in_prompt && i < scope.ignored_prefix()) continue;
    if (window != 0 && tokens.size() - i > window) continue;
    if (repeats && (!in_prompt || repetition_in_prompt)) edits[tokens[i]].flags |= LogitEdit::kRepeated;
    if (!in_prompt || frequency_in_prompt) ++frequent[tokens[i]];
  }
  std::map<uint32_t, double> dry;
  if (p.dry().multiplier() != 0) {
    for (const auto& [token, length] : Repetitions(p.dry(), tokens)) dry[token] = DryTerm(p.dry(), length);
  }
  if (p.frequency_penalty() != 0 || p.presence_penalty() != 0) {
    for (const auto& [token, count] : frequent) dry.try_emplace(token, 0);
  }
  for (const auto& [token, term] : dry) {
    edits[token].penalty = law::PenaltyBits(p.frequency_penalty(), p.presence_penalty(), frequent[token], term);
  }
  return edits.Sorted();
}

PlainPlace PlainPlaceAfter(const v1::SamplingParameters& p, const std::vector<uint32_t>& tokens,
                           uint32_t prompt_length) {
  const auto ends_with = [&](size_t from, size_t length, const auto& tag) {
    const auto size = static_cast<size_t>(tag.size());
    return length - from >= size &&
           std::equal(tag.begin(), tag.end(), tokens.begin() + static_cast<ptrdiff_t>(length - size));
  };
  const auto then_of = [](const v1::Phase& phase) { return phase.then().empty() ? phase.end() : phase.then(); };
  const auto budget_end = [&](const v1::Phase& phase, size_t since) {
    if (!phase.has_max_tokens()) return tokens.size() + 1;
    const size_t end = since + phase.max_tokens();
    return since <= prompt_length ? std::max<size_t>(end, prompt_length) : end;
  };
  uint32_t now = 0;
  size_t since = 0;
  for (size_t length = 0; length <= tokens.size(); ++length) {
    if (now != 0 && length > since) {
      const v1::Phase& phase = p.phases(static_cast<int>(now) - 1);
      const size_t then = budget_end(phase, since);
      const bool over = length > then ? length == then + static_cast<size_t>(then_of(phase).size())
                                      : !phase.end().empty() && ends_with(since, length, phase.end());
      if (over) now = 0, since = length;
    } else if (now == 0) {
      for (int i = 0; i < p.phases_size(); ++i) {
        const auto& begin = p.phases(i).begin();
        if (now == 0 && !begin.empty() && ends_with(since, length, begin)) {
          now = static_cast<uint32_t>(i) + 1;
          since = length;
        }
      }
    }
    for (int i = 0; i < p.phases_size() && length == prompt_length && now == 0; ++i) {
      if (p.phases(i).begin().empty()) now = static_cast<uint32_t>(i) + 1, since = length;
    }
  }
  PlainPlace place = {now, {}};
  if (now == 0) return place;
  const v1::Phase& phase = p.phases(static_cast<int>(now) - 1);
  const size_t then = budget_end(phase, since);
  if (tokens.size() >= then) place.forced = then_of(phase).at(static_cast<int>(tokens.size() - then));
  return place;
}

v1::SamplingParameters PlainWithin(const v1::SamplingParameters& p, uint32_t phase) {
  v1::SamplingParameters within = p;
  within.clear_phases();
  if (phase == 0) return within;
  const v1::SamplingParameters& own = p.phases(static_cast<int>(phase) - 1).parameters();
  std::vector<const google::protobuf::FieldDescriptor*> set;
  own.GetReflection()->ListFields(own, &set);
  for (const auto* const field : set) within.GetReflection()->ClearField(&within, field);
  within.MergeFrom(own);
  return within;
}

bool PlainRepeats(const v1::SamplingParameters& p, const std::vector<uint32_t>& tokens, uint32_t prompt_length) {
  const v1::RepetitionStop& stop = p.repetition_stop();
  const size_t output = tokens.size() - prompt_length;
  if (stop.repeats() == 0 || output < stop.min_tokens()) return false;
  const size_t least = stop.has_min_length() ? stop.min_length() : 256;
  const size_t longest = stop.has_max_period() ? stop.max_period() : 256;
  for (size_t period = stop.has_min_period() ? stop.min_period() : 1; period <= longest; ++period) {
    const size_t length = std::max(stop.repeats() * period, least);
    if (length > output) continue;
    bool repeats = true;
    for (size_t i = tokens.size() - length + period; i < tokens.size(); ++i) repeats &= tokens[i] == tokens[i - period];
    if (repeats) return true;
  }
  return false;
}

std::optional<uint32_t> PlainPhraseFrom(const v1::SamplingParameters& p, const std::vector<uint32_t>& tokens,
                                        uint32_t prompt_length) {
  std::optional<uint32_t> from;
  for (const v1::TokenSequence& phrase : p.banned_phrases()) {
    const auto size = static_cast<size_t>(phrase.tokens_size());
    if (size > tokens.size() - prompt_length || !Matches(tokens, tokens.size() - size, phrase)) continue;
    from = std::min(from.value_or(UINT32_MAX), static_cast<uint32_t>(tokens.size() - size));
  }
  return from;
}

kernels::NoiseKey PlainNoise(const v1::SamplingParameters& p, const std::vector<uint32_t>& tokens,
                             const kernels::NoiseKey& own) {
  if (!p.has_watermark()) return own;
  const v1::Watermark& mark = p.watermark();
  const size_t width = mark.has_context_width() ? mark.context_width() : 4;
  const auto context = std::span(tokens).last(std::min(width, tokens.size()));
  if (mark.skip_repeated_contexts() && tokens.size() > width) {
    // The last context is there; an earlier one is a repetition.
    if (std::ranges::search(tokens, context).begin() != tokens.end() - static_cast<std::ptrdiff_t>(width)) return own;
  }
  return law::WatermarkNoise(mark.key(), context);
}

}  // namespace sortition::testing
