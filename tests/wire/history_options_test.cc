// Parameters that look at the history: ranges, off values, contradictions, and their words in the history hash.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>

#include "kernels/law/dry_terms.h"
#include "service/wire/compile_history_options.h"
#include "service/wire/compile_parameters.h"
#include "tests/wire/float_ends.h"

namespace sortition::service::history_options_test {
namespace {

using v1::SamplingParameters;
using Set = std::function<void(SamplingParameters*)>;

constexpr uint32_t kVocabulary = 1000;

std::variant<SequenceSpec, Refusal> Compile(const Set& set, const Limits& limits = {}) {
  SamplingParameters parameters;
  set(&parameters);
  SequenceSpec spec;
  spec.vocabulary = spec.live_vocabulary = kVocabulary;
  if (auto refusal = CompileParameters(parameters, limits, "p", &spec)) return *std::move(refusal);
  return spec;
}

SequenceSpec MustCompile(const Set& set) {
  auto compiled = Compile(set);
  if (const auto* refusal = std::get_if<Refusal>(&compiled)) {
    ADD_FAILURE() << refusal->field << ": " << refusal->message;
    return {};
  }
  return std::get<SequenceSpec>(std::move(compiled));
}

void ExpectRefused(const Set& set, Reason reason, const std::string& field, const Limits& limits = {}) {
  const auto compiled = Compile(set, limits);
  const auto* refusal = std::get_if<Refusal>(&compiled);
  ASSERT_NE(refusal, nullptr) << field;
  EXPECT_EQ(refusal->reason, reason) << field << " " << ReasonName(refusal->reason);
  EXPECT_EQ(refusal->field, field);
  EXPECT_FALSE(refusal->message.empty());
}

Set WithDry(const std::function<void(v1::Dry*)>& set) {
  return [set](SamplingParameters* p) {
    p->mutable_dry()->set_multiplier(1);
    set(p->mutable_dry());
  };
}

Set WithPhase(const std::function<void(v1::Phase*)>& set) {
  return [set](SamplingParameters* p) {
    p->add_phases()->add_begin(1);
    p->mutable_phases(0)->add_end(1);
    p->mutable_phases(0)->set_max_tokens(1);
    set(p->mutable_phases(0));
  };
}

void Fill(v1::TokenSequence* string, size_t tokens) {
  for (size_t i = 0; i < tokens; ++i) string->add_tokens(static_cast<uint32_t>(i % kVocabulary));
}

TEST(HistoryOptions, DryHasItsStatedDefaults) {
  const DryOptions dry = MustCompile(WithDry([](auto*) {})).history.dry;
  EXPECT_EQ(dry.base, 1.75f);
  EXPECT_EQ(dry.allowed_length, 2u);
  EXPECT_EQ(dry.window, 0u);
  EXPECT_EQ(dry.terms, law::DryTerms(1, 1.75f));
  EXPECT_EQ(dry.reach(), 24u);
}

TEST(HistoryOptions, TokenStringsAreBounded) {
  const auto breaker = [](size_t tokens) {
    return WithDry([=](auto* dry) { Fill(dry->add_sequence_breakers(), tokens); });
  };
  const auto word = [](size_t tokens) { return [=](SamplingParameters* p) { Fill(p->add_bad_words(), tokens); }; };
  MustCompile(breaker(1024));
  MustCompile(word(1024));
  ExpectRefused(breaker(1025), Reason::kTooMany, "p.dry.sequence_breakers[0].tokens");
  ExpectRefused(word(1025), Reason::kTooMany, "p.bad_words[0].tokens");
  ExpectRefused(breaker(0), Reason::kMissingField, "p.dry.sequence_breakers[0].tokens");
  ExpectRefused(word(0), Reason::kMissingField, "p.bad_words[0].tokens");
  Limits limits;
  limits.max_listed_tokens = 3;
  const Set words = [](SamplingParameters* p) {
    Fill(p->add_bad_words(), 2);
    Fill(p->add_bad_words(), 1);
  };
  EXPECT_TRUE(std::holds_alternative<SequenceSpec>(Compile(words, limits)));
  limits.max_listed_tokens = 2;
  ExpectRefused(words, Reason::kTooMany, "p.bad_words", limits);
}

TEST(HistoryOptions, ListsHoldLiveTokensOnce) {
  ExpectRefused([](auto* p) { p->add_stop_token_ids(kVocabulary); }, Reason::kOutOfRange, "p.stop_token_ids[0]");
  ExpectRefused([](auto* p) { p->add_phases()->add_then(kVocabulary); }, Reason::kOutOfRange, "p.phases[0].then[0]");
  ExpectRefused([](auto* p) { p->add_bad_words()->add_tokens(kVocabulary); }, Reason::kOutOfRange,
                "p.bad_words[0].tokens[0]");
  const Set stops = [](auto* p) {
    p->add_stop_token_ids(1);
    p->add_stop_token_ids(1);
  };
  const Set words = [](auto* p) {
    Fill(p->add_bad_words(), 2);
    Fill(p->add_bad_words(), 2);
  };
  ExpectRefused(stops, Reason::kContradiction, "p.stop_token_ids");
  ExpectRefused(words, Reason::kContradiction, "p.bad_words[1]");
}

TEST(HistoryOptions, MinimumNeedsStopTokens) {
  ExpectRefused([](auto* p) { p->set_min_tokens(5); }, Reason::kContradiction, "p.min_tokens");
  ExpectRefused([](auto* p) { p->set_no_repeat_ngram_size(1025); }, Reason::kOutOfRange, "p.no_repeat_ngram_size");
}

// Options that do not need the history keep none.
TEST(HistoryOptions, OnlyHistoryOptionsNeedState) {
  EXPECT_FALSE(MustCompile([](auto* p) { p->add_stop_token_ids(2); }).stateful());
  const SequenceSpec banned = MustCompile([](auto* p) { p->add_bad_words()->add_tokens(7); });
  EXPECT_FALSE(banned.stateful());
  ASSERT_EQ(banned.listed_edits.size(), 1u);
  EXPECT_EQ(banned.listed_edits[0].token, 7u);
  EXPECT_TRUE(MustCompile([](auto* p) { Fill(p->add_bad_words(), 2); }).stateful());
}

TEST(HistoryOptions, OffEqualsAbsentOnChangesHistory) {
  const SequenceSpec absent = MustCompile([](auto*) {});
  for (const Set& off : std::vector<Set>{
           [](auto* p) { p->mutable_dry()->set_window(5); }, [](auto* p) { p->mutable_dry()->set_multiplier(-0.0f); },
           [](auto* p) { p->set_no_repeat_ngram_size(0); }, [](auto* p) { p->set_min_tokens(0); }}) {
    EXPECT_EQ(MustCompile(off), absent);
  }
  std::set<std::vector<uint64_t>> words = {absent.history.Words()};
  EXPECT_TRUE(words.begin()->empty());
  const std::vector<Set> different = {
      WithDry([](auto*) {}),
      WithDry([](auto* dry) { dry->set_multiplier(2); }),
      WithDry([](auto* dry) { dry->set_base(2); }),
      WithDry([](auto* dry) { dry->set_allowed_length(3); }),
      WithDry([](auto* dry) { dry->set_window(3); }),
      WithDry([](auto* dry) { Fill(dry->add_sequence_breakers(), 1); }),
      WithDry([](auto* dry) { Fill(dry->add_sequence_breakers(), 2); }),
      [](auto* p) { p->set_no_repeat_ngram_size(2); },
      [](auto* p) { p->set_no_repeat_ngram_size(3); },
      [](auto* p) { Fill(p->add_bad_words(), 2); },
      [](auto* p) { Fill(p->add_bad_words(), 3); },
      [](auto* p) { p->add_stop_token_ids(1), p->set_min_tokens(1); },
      [](auto* p) { p->add_stop_token_ids(2), p->set_min_tokens(1); },
      [](auto* p) { p->add_stop_token_ids(2), p->set_min_tokens(2); },
      WithPhase([](auto*) {}),
      WithPhase([](auto* phase) { phase->add_begin(2); }),
      WithPhase([](auto* phase) { phase->add_end(2); }),
      WithPhase([](auto* phase) { phase->set_max_tokens(2); }),
      WithPhase([](auto* phase) { phase->set_max_tokens(0), phase->add_then(9); }),
      WithPhase([](auto* phase) { phase->mutable_parameters()->set_presence_penalty(1); }),
  };
  for (size_t i = 0; i < different.size(); ++i) {
    const SequenceSpec spec = MustCompile(different[i]);
    EXPECT_TRUE(spec.stateful()) << i;
    EXPECT_TRUE(words.insert(spec.history.Words()).second) << i;
  }
}

// Sets may come in any order.
TEST(HistoryOptions, SetOrderDoesNotMatter) {
  const auto with = [](std::vector<std::vector<uint32_t>> strings) {
    return MustCompile([strings](SamplingParameters* p) {
      p->mutable_dry()->set_multiplier(1);
      p->set_min_tokens(3);
      for (const auto& string : strings) {
        p->add_stop_token_ids(string[0]);
        v1::TokenSequence& breaker = *p->mutable_dry()->add_sequence_breakers();
        v1::TokenSequence& word = *p->add_bad_words();
        for (const uint32_t token : string) breaker.add_tokens(token), word.add_tokens(token);
      }
    });
  };
  EXPECT_EQ(with({{1, 2}, {3, 2}, {2, 2, 1}}), with({{2, 2, 1}, {3, 2}, {1, 2}}));
}

// A stop of two repeats that `set` changes.
Set Stop(const std::function<void(v1::RepetitionStop*)>& set) {
  return [set](SamplingParameters* p) {
    p->mutable_repetition_stop()->set_repeats(2);
    set(p->mutable_repetition_stop());
  };
}

Set Phrases(const std::vector<std::vector<uint32_t>>& phrases) {
  return [phrases](SamplingParameters* p) {
    for (const auto& phrase : phrases) p->add_banned_phrases()->mutable_tokens()->Assign(phrase.begin(), phrase.end());
  };
}

TEST(RepetitionStop, LooksBackForTwoOrMorePeriods) {
  EXPECT_EQ(MustCompile(Stop([](auto* s) { s->set_repeats(16384), s->set_max_period(1); })).history.lookback(), 16384u);
  const SequenceSpec ends = MustCompile(Stop([](auto* s) { s->set_min_period(512), s->set_max_period(512); }));
  EXPECT_EQ(ends.history.lookback(), 1024u);
}

TEST(RepetitionStop, PeriodsThatLeaveNoneAreRefused) {
  ExpectRefused(Stop([](auto* s) { s->set_min_period(9), s->set_max_period(8); }), Reason::kContradiction,
                "p.repetition_stop.min_period");
  ExpectRefused(Stop([](auto* s) { s->set_min_period(257); }), Reason::kContradiction, "p.repetition_stop.min_period");
}

TEST(RepetitionStop, TooLongALookBackIsRefused) {
  ExpectRefused(Stop([](auto* s) { s->set_repeats(65); }), Reason::kOutOfRange, "p.repetition_stop.repeats");
  EXPECT_EQ(MustCompile(Stop([](auto* s) { s->set_repeats(64); })).history.lookback(), 16384u);
  EXPECT_EQ(MustCompile(Stop([](auto* s) { s->set_min_length(16384); })).history.lookback(), 16384u);
}

TEST(BannedPhrases, BadPhrasesAreRefusedByName) {
  ExpectRefused(Phrases({{1}, {}}), Reason::kMissingField, "p.banned_phrases[1].tokens");
  ExpectRefused(Phrases({{1}, {2, kVocabulary}}), Reason::kOutOfRange, "p.banned_phrases[1].tokens[1]");
  ExpectRefused(Phrases({{1, 2}, {3}, {1, 2}}), Reason::kContradiction, "p.banned_phrases[2]");
  ExpectRefused(Phrases({std::vector<uint32_t>(1025, 1)}), Reason::kTooMany, "p.banned_phrases[0].tokens");
  Limits limits;
  limits.max_listed_tokens = 3;
  ExpectRefused(Phrases({{1, 2}, {3, 4}}), Reason::kTooMany, "p.banned_phrases", limits);
}

TEST(HistoryOptions, StopsOffEqualAbsentOnChangeHistory) {
  const SequenceSpec absent = MustCompile([](auto*) {});
  EXPECT_EQ(MustCompile([](auto* p) { p->mutable_repetition_stop()->set_max_period(9); }), absent);
  std::set<std::vector<uint64_t>> words = {absent.history.Words()};
  const std::vector<Set> different = {
      Stop([](auto*) {}),
      Stop([](auto* s) { s->set_repeats(3); }),
      Stop([](auto* s) { s->set_min_period(2); }),
      Stop([](auto* s) { s->set_max_period(2); }),
      Stop([](auto* s) { s->set_min_length(2); }),
      Stop([](auto* s) { s->set_min_tokens(2); }),
      Phrases({{1}}),
      Phrases({{1, 2}}),
      Phrases({{1}, {2}}),
  };
  for (size_t i = 0; i < different.size(); ++i) {
    const SequenceSpec spec = MustCompile(different[i]);
    EXPECT_TRUE(spec.stateful()) << i;
    EXPECT_TRUE(words.insert(spec.history.Words()).second) << i;
  }
  EXPECT_EQ(MustCompile(Phrases({{1, 2}, {9}, {3, 2}})), MustCompile(Phrases({{9}, {3, 2}, {1, 2}})));
}

// Expects the order of proto/history_hash.md.
TEST(HistoryOptions, WordsOfStopsAndPhrases) {
  EXPECT_EQ(MustCompile(Stop([](auto* s) { s->set_min_tokens(7); })).history.Words(),
            (std::vector<uint64_t>{44, 2, 1, 256, 256, 7}));
  EXPECT_EQ(MustCompile(Phrases({{9}, {3, 2}, {1, 2}})).history.Words(),
            (std::vector<uint64_t>{45, 3, 2, 1, 2, 2, 3, 2, 1, 9}));
}

TEST(DryTerms, EndAtMaskedLogits) {
  const std::vector<double> terms = law::DryTerms(0.5f, 2);
  for (size_t e = 0; e < terms.size(); ++e) EXPECT_EQ(terms[e], std::ldexp(0.5, static_cast<int>(e)));
  EXPECT_GE(terms.back(), 131008);
  EXPECT_LT(terms[terms.size() - 2], 131008);
  EXPECT_EQ(law::DryTerms(3, 1), std::vector<double>{3});
  EXPECT_LT(law::DryTerms(0.01f, 1.01f).size(), 2048u);
}

}  // namespace
}  // namespace sortition::service::history_options_test
