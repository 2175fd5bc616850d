// Phases in parameters: every refusal by its field, and the parameters that hold within.
#include "service/wire/phase_options.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "google/protobuf/text_format.h"
#include "service/wire/compile_parameters.h"

namespace sortition::service::phase_options_test {
namespace {

constexpr uint32_t kVocabulary = 100;

v1::SamplingParameters Parsed(const std::string& text) {
  v1::SamplingParameters parameters;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &parameters)) << text;
  return parameters;
}

std::optional<Refusal> Compile(const v1::SamplingParameters& parameters, SequenceSpec* spec,
                               const Limits& limits = {}) {
  spec->vocabulary = spec->live_vocabulary = kVocabulary;
  return CompileParameters(parameters, limits, "p", spec);
}

void ExpectRefused(const std::string& text, Reason reason, const std::string& field, const Limits& limits = {}) {
  SequenceSpec spec;
  const auto refusal = Compile(Parsed(text), &spec, limits);
  ASSERT_TRUE(refusal.has_value()) << text;
  EXPECT_EQ(refusal->reason, reason) << text << ": " << refusal->message;
  EXPECT_EQ(refusal->field, field) << text;
  EXPECT_FALSE(refusal->message.empty());
}

SequenceSpec MustCompile(const std::string& text, const Limits& limits = {}) {
  SequenceSpec spec;
  const auto refusal = Compile(Parsed(text), &spec, limits);
  EXPECT_FALSE(refusal.has_value()) << refusal->field << ": " << refusal->message;
  return spec;
}

std::string RepeatedTokens(const std::string& field, uint32_t count) {
  std::string text;
  for (uint32_t i = 0; i < count; ++i) text += field + ": " + std::to_string(i % kVocabulary) + " ";
  return text;
}

TEST(PhaseOptions, NinePhasesAreRefused) {
  std::string phases;
  for (uint32_t i = 0; i < kMaxPhases; ++i) phases += "phases { begin: " + std::to_string(i) + " end: 50 } ";
  EXPECT_EQ(MustCompile(phases).history.phases.size(), kMaxPhases);
  ExpectRefused(phases + "phases { begin: 60 end: 50 }", Reason::kTooMany, "p.phases");
}

TEST(PhaseOptions, LongTagsAreRefused) {
  MustCompile("phases { " + RepeatedTokens("begin", 32) + RepeatedTokens("end", 32) + "}");
  ExpectRefused("phases { end: 1 " + RepeatedTokens("begin", 33) + "}", Reason::kTooMany, "p.phases[0].begin");
  ExpectRefused("phases { " + RepeatedTokens("end", 33) + "}", Reason::kTooMany, "p.phases[0].end");
}

TEST(PhaseOptions, DeadTokensAreRefused) {
  ExpectRefused("phases { begin: 100 end: 1 }", Reason::kOutOfRange, "p.phases[0].begin[0]");
  ExpectRefused("phases { begin: 1 end: [1, 100] }", Reason::kOutOfRange, "p.phases[0].end[1]");
  ExpectRefused("phases { max_tokens: 1 then: 100 }", Reason::kOutOfRange, "p.phases[0].then[0]");
}

TEST(PhaseOptions, EndlessPhaseIsRefused) {
  ExpectRefused("phases { begin: 1 }", Reason::kContradiction, "p.phases[0].end");
}

TEST(PhaseOptions, ThenWithoutBudgetIsRefused) {
  ExpectRefused("phases { begin: 1 end: 2 then: 3 }", Reason::kContradiction, "p.phases[0].then");
}

TEST(PhaseOptions, BudgetWithoutThenIsRefused) {
  ExpectRefused("phases { begin: 1 max_tokens: 3 }", Reason::kContradiction, "p.phases[0].then");
  EXPECT_EQ(MustCompile("phases { begin: 1 end: [4, 5] max_tokens: 3 }").history.phases[0].then, (TokenString{4, 5}));
}

TEST(PhaseOptions, BudgetBeyondHistoryIsRefused) {
  Limits limits;
  limits.max_history = 10;
  MustCompile("phases { max_tokens: 8 then: [1, 2] }", limits);
  ExpectRefused("phases { max_tokens: 9 then: [1, 2] }", Reason::kOutOfRange, "p.phases[0].max_tokens", limits);
  ExpectRefused("phases { end: [1, 2] max_tokens: 4294967295 }", Reason::kOutOfRange, "p.phases[0].max_tokens");
}

TEST(PhaseOptions, ContainedTagsAreRefused) {
  const auto both = [](const std::string& one, const std::string& other) {
    return "phases { begin: " + one + " end: 9 } phases { begin: " + other + " end: 9 }";
  };
  MustCompile(both("[1, 2]", "[2, 1]"));
  for (const char* inner : {"1", "2", "3", "[1, 2]", "[2, 3]", "[1, 2, 3]"}) {
    ExpectRefused(both(inner, "[1, 2, 3]"), Reason::kContradiction, "p.phases[1].begin");
    ExpectRefused(both("[1, 2, 3]", inner), Reason::kContradiction, "p.phases[1].begin");
  }
}

TEST(PhaseOptions, TwoEmptyBeginsAreRefused) {
  ExpectRefused("phases { end: 1 } phases { end: 2 }", Reason::kContradiction, "p.phases[1].begin");
}

TEST(PhaseOptions, ManyTokensAreRefused) {
  Limits limits;
  limits.max_listed_tokens = 7;
  MustCompile("phases { begin: [1, 2] end: 3 } phases { begin: 4 end: 3 max_tokens: 1 then: [5, 6] }", limits);
  ExpectRefused("phases { begin: [1, 2] end: 3 } phases { begin: 4 end: 3 max_tokens: 1 then: [5, 6, 7] }",
                Reason::kTooMany, "p.phases", limits);
}

TEST(PhaseOptions, PhaseThatMasksAllIsRefused) {
  const std::string phase = "phases { begin: 1 end: 2 parameters { ";
  MustCompile("banned_token_ids: [3, 4] " + phase + "allowed_token_ids: [3, 5] } }");
  ExpectRefused("banned_token_ids: [3, 4] " + phase + "allowed_token_ids: [3, 4] } }", Reason::kContradiction,
                "p.phases[0].parameters.allowed_token_ids");
  ExpectRefused("allowed_token_ids: [3, 4] " + phase + "banned_token_ids: [4, 3] } }", Reason::kContradiction,
                "p.phases[0].parameters.banned_token_ids");
  ExpectRefused(phase + RepeatedTokens("banned_token_ids", kVocabulary) + "} }", Reason::kContradiction,
                "p.phases[0].parameters.banned_token_ids");
}

// A prompt, or a caller that appends tokens, can have a tag that the output cannot draw.
TEST(PhaseOptions, MaskedTagsAreTaken) {
  MustCompile("banned_token_ids: 1 phases { begin: 1 end: 5 }");
  MustCompile("banned_token_ids: 5 phases { begin: 1 end: [4, 5] }");
  MustCompile("phases { begin: 1 end: 4 parameters { allowed_token_ids: [2, 3] } }");
}

// Two tags that each end where the other begins are told apart by the tokens that follow.
TEST(PhaseOptions, OverlappingTagsAreTakenInOrder) {
  MustCompile("phases { begin: [1, 2] end: 9 } phases { begin: [2, 3] end: 9 }");
  MustCompile("phases { begin: [1, 2] end: [2, 1] }");
  MustCompile("phases { begin: 1 end: 1 }");
}

// In a message an empty list is no list: the sequence's holds within.
TEST(PhaseOptions, EmptyListsAreInherited) {
  const std::string outside = "banned_token_ids: 3 allowed_token_ids: [1, 2] logit_bias { token: 5 bias: 1 } ";
  v1::SamplingParameters parameters = Parsed(outside + "phases { end: 2 parameters { top_k: 4 } }");
  parameters.mutable_phases(0)->mutable_parameters()->mutable_banned_token_ids()->Clear();
  SequenceSpec spec;
  ASSERT_FALSE(Compile(parameters, &spec));
  const SequenceSpec plain = MustCompile(outside);
  EXPECT_EQ(spec.Within(1).listed_edits, plain.listed_edits);
  EXPECT_EQ(spec.Within(1).allowed_tokens, plain.allowed_tokens);
  // A list of one entry that changes nothing replaces it by none.
  const SequenceSpec none =
      MustCompile("logit_bias { token: 5 bias: 1 } phases { end: 2 parameters { logit_bias { token: 5 bias: 0 } } }");
  EXPECT_TRUE(none.Within(1).listed_edits.empty() || none.Within(1).listed_edits[0].bias == 0);
}

TEST(PhaseOptions, InnerRangesAreNamed) {
  const std::string phase = "phases { begin: 1 end: 2 parameters { ";
  ExpectRefused(phase + "top_p: 0 } }", Reason::kOutOfRange, "p.phases[0].parameters.top_p");
  ExpectRefused(phase + "logit_bias { token: 100 } } }", Reason::kOutOfRange,
                "p.phases[0].parameters.logit_bias[0].token");
  ExpectRefused("chain { explicit { samplers: \"top_k\" } } " + phase + "min_p: 0.1 } }", Reason::kContradiction,
                "p.phases[0].parameters.min_p");
}

TEST(PhaseOptions, FieldOfTheSequenceThatContradictsAPhaseIsNamed) {
  const std::string greedy = "phases { begin: 1 end: 2 parameters { temperature: 0 } }";
  ExpectRefused("xtc { probability: 1 } " + greedy, Reason::kContradiction, "p.xtc");
  ExpectRefused("typical_p: 0.5 " + greedy, Reason::kContradiction, "p.typical_p");
  ExpectRefused("temperature: 0 phases { begin: 1 end: 2 parameters { xtc { probability: 1 } } }",
                Reason::kContradiction, "p.phases[0].parameters.xtc");
  const std::string dynamic = "phases { begin: 1 end: 2 parameters { dynamic_temperature { range: 0.5 } } }";
  ExpectRefused("chain { explicit { samplers: 'top_k' } } " + dynamic, Reason::kContradiction,
                "p.phases[0].parameters.dynamic_temperature");
}

// Each set field replaces the sequence's, an off value too; the others hold within as outside.
TEST(PhaseOptions, SetFieldsReplaceTheSequences) {
  const std::string outside =
      "temperature: 0.5 top_k: 7 top_p: 0.9 presence_penalty: 1 banned_token_ids: 3 allowed_token_ids: [1, 2] "
      "raw_logprobs { top: 2 } bad_words { tokens: 8 } logit_bias { token: 5 bias: 1 } ";
  const SequenceSpec spec =
      MustCompile(outside +
                  "phases { end: 2 parameters { temperature: 0.7 top_k: 0 presence_penalty: 0 banned_token_ids: 4 "
                  "logit_bias { token: 6 bias: 0 } min_p: 0.1 } }");
  const SequenceSpec plain = MustCompile(
      "temperature: 0.7 top_p: 0.9 banned_token_ids: 4 allowed_token_ids: [1, 2] raw_logprobs { top: 2 } "
      "bad_words { tokens: 8 } min_p: 0.1");
  EXPECT_EQ(spec.Within(1), static_cast<const PhaseOptions&>(plain));
  EXPECT_EQ(spec.Within(0), static_cast<const PhaseOptions&>(MustCompile(outside)));
  EXPECT_TRUE(spec.stateful());
}

TEST(PhaseOptions, OneSumNeedsOneTemperature) {
  EXPECT_TRUE(StatesOneSum(MustCompile("temperature: 0.5 phases { end: 1 parameters { top_k: 3 } }")));
  EXPECT_FALSE(StatesOneSum(MustCompile("temperature: 0.5 phases { end: 1 parameters { temperature: 0.6 } }")));
}

// typical_p makes a chain of the options, in which temperature 1 has no stage.
TEST(PhaseOptions, OneSumDoesNotDependOnHowOptionsCompile) {
  for (const char* const chain : {"", "typical_p: 0.5 "}) {
    const std::string options(chain);
    EXPECT_TRUE(StatesOneSum(MustCompile(options)));
    EXPECT_TRUE(StatesOneSum(MustCompile(options + "temperature: 0.5")));
    EXPECT_TRUE(StatesOneSum(MustCompile(options + "phases { end: 1 parameters { typical_p: 1 } }")));
    EXPECT_FALSE(StatesOneSum(MustCompile(options + "dynamic_temperature { range: 0.5 }")));
  }
  EXPECT_TRUE(StatesOneSum(MustCompile("temperature: 0")));
}

// The lists of a phase are joined from compiled ones, and equal those of a text that has them outside of phases.
TEST(PhaseOptions, LongListsEqualThoseOfATextWithThem) {
  constexpr uint32_t kWide = 100'000;
  std::mt19937 random(1);
  const auto tokens = [&](size_t count) {
    std::vector<uint32_t> all(kWide);
    std::iota(all.begin(), all.end(), 0u);
    std::shuffle(all.begin(), all.end(), random);
    return std::vector<uint32_t>(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
  };
  const auto add = [&](bool biases, bool bans, bool allowed, v1::SamplingParameters* p) {
    if (biases) p->clear_logit_bias();
    if (bans) p->clear_banned_token_ids();
    if (allowed) p->clear_allowed_token_ids();
    for (const uint32_t token : tokens(biases ? 3000 : 0)) {
      v1::LogitBias& bias = *p->add_logit_bias();
      bias.set_token(token);
      bias.set_bias(token % 3 == 0 ? 0.0f : 1.5f);
    }
    for (const uint32_t token : tokens(bans ? 2000 : 0)) p->add_banned_token_ids(token);
    for (const uint32_t token : tokens(allowed ? 20'000 : 0)) p->add_allowed_token_ids(token);
  };
  const auto compile = [](const v1::SamplingParameters& parameters) {
    SequenceSpec spec;
    spec.vocabulary = spec.live_vocabulary = kWide;
    const auto refusal = CompileParameters(parameters, Limits(), "p", &spec);
    EXPECT_FALSE(refusal) << refusal->field << ": " << refusal->message;
    return spec;
  };
  v1::SamplingParameters outside;
  add(true, true, true, &outside);
  for (const uint32_t token : tokens(4000)) outside.add_bad_words()->add_tokens(token);
  for (int lists = 0; lists < 8; ++lists) {
    v1::SamplingParameters phased = outside;
    v1::Phase& phase = *phased.add_phases();
    phase.add_begin(1);
    phase.add_end(2);
    v1::SamplingParameters& own = *phase.mutable_parameters();
    add(lists & 1, lists & 2, lists & 4, &own);
    v1::SamplingParameters plain = outside;
    if (lists & 1) *plain.mutable_logit_bias() = own.logit_bias();
    if (lists & 2) *plain.mutable_banned_token_ids() = own.banned_token_ids();
    if (lists & 4) *plain.mutable_allowed_token_ids() = own.allowed_token_ids();
    const SequenceSpec spec = compile(phased), want = compile(plain);
    EXPECT_TRUE(spec.Within(1).listed_edits == want.listed_edits) << lists;
    EXPECT_EQ(spec.Within(1).allowed_tokens, want.allowed_tokens) << lists;
    EXPECT_TRUE(std::ranges::is_sorted(want.listed_edits, {}, &kernels::LogitEdit::token));
    std::set<uint32_t> edited(plain.banned_token_ids().begin(), plain.banned_token_ids().end());
    for (const auto& word : plain.bad_words()) edited.insert(word.tokens(0));
    for (const v1::LogitBias& bias : plain.logit_bias()) {
      if (bias.bias() != 0) edited.insert(bias.token());
    }
    EXPECT_EQ(want.listed_edits.size(), edited.size());
  }
}

}  // namespace
}  // namespace sortition::service::phase_options_test
