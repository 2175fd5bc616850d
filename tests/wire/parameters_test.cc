// Sampling parameters: every end of every range, off values, lists, and options that are not built.
#include "kernels/law/parameters.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <optional>
#include <set>

#include "service/wire/compile_parameters.h"
#include "tests/wire/float_ends.h"

namespace sortition::service::parameters_test {
namespace {

using kernels::LogitEdit;
using v1::SamplingParameters;

constexpr uint32_t kVocabulary = 1000;

SequenceSpec EmptySpec() {
  SequenceSpec spec;
  spec.vocabulary = spec.live_vocabulary = kVocabulary;
  return spec;
}

std::optional<Refusal> Compile(const SamplingParameters& parameters, SequenceSpec* spec, const Limits& limits = {}) {
  *spec = EmptySpec();
  return CompileParameters(parameters, limits, "p", spec);
}

SequenceSpec MustCompile(const SamplingParameters& parameters) {
  SequenceSpec spec;
  const std::optional<Refusal> refusal = Compile(parameters, &spec);
  EXPECT_FALSE(refusal.has_value()) << refusal->field << ": " << refusal->message << " " << parameters.DebugString();
  return spec;
}

void ExpectRefused(const SamplingParameters& parameters, Reason reason, const std::string& field,
                   const Limits& limits = {}) {
  SequenceSpec spec;
  const std::optional<Refusal> refusal = Compile(parameters, &spec, limits);
  ASSERT_TRUE(refusal.has_value()) << field << " " << parameters.ShortDebugString();
  EXPECT_EQ(refusal->reason, reason) << ReasonName(refusal->reason);
  EXPECT_EQ(refusal->field, field);
  EXPECT_FALSE(refusal->message.empty());
}

struct FloatRange {
  std::string name;
  void (SamplingParameters::*set)(float);
  std::vector<float> inside;
  std::vector<float> outside;
};

std::vector<FloatRange> FloatRanges() {
  const float denormal = std::numeric_limits<float>::denorm_min();
  return {
      {"temperature",
       &SamplingParameters::set_temperature,
       {0, -0.0f, 0.01f, 1, 100},
       {Below(0.01f), Above(100), denormal, -1, -0.01f}},
      {"top_p", &SamplingParameters::set_top_p, {denormal, 0.5f, Below(1), 1}, {0, -0.0f, Above(1), -0.5f}},
      {"min_p", &SamplingParameters::set_min_p, {0, -0.0f, denormal, 0.5f, 1}, {-denormal, Above(1)}},
      {"repetition_penalty",
       &SamplingParameters::set_repetition_penalty,
       {0.01f, 1, 100},
       {Below(0.01f), Above(100), 0, -1}},
      {"frequency_penalty",
       &SamplingParameters::set_frequency_penalty,
       {-100, -0.0f, 0, denormal, 100},
       {Below(-100), Above(100)}},
      {"presence_penalty",
       &SamplingParameters::set_presence_penalty,
       {-100, -0.0f, 0, denormal, 100},
       {Below(-100), Above(100)}},
  };
}

TEST(Parameters, FloatsInsideTheirRange) {
  for (const FloatRange& range : FloatRanges()) {
    for (const float value : range.inside) {
      SamplingParameters parameters;
      (parameters.*range.set)(value);
      MustCompile(parameters);
    }
  }
}

TEST(Parameters, FloatsOutsideTheirRange) {
  for (FloatRange range : FloatRanges()) {
    range.outside.insert(range.outside.end(), {kNaN, -kNaN, kInfinity, -kInfinity});
    for (const float value : range.outside) {
      SamplingParameters parameters;
      (parameters.*range.set)(value);
      ExpectRefused(parameters, Reason::kOutOfRange, "p." + range.name);
      SequenceSpec spec;
      EXPECT_FALSE(Compile(parameters, &spec)->limit.empty());
    }
  }
}

TEST(Parameters, OffValuesEqualAbsent) {
  const std::vector<std::pair<std::string, std::function<void(SamplingParameters*)>>> off = {
      {"temperature", [](auto* p) { p->set_temperature(1); }},
      {"top_k 0", [](auto* p) { p->set_top_k(0); }},
      {"top_k vocabulary", [](auto* p) { p->set_top_k(kVocabulary); }},
      {"top_k huge", [](auto* p) { p->set_top_k(0xffffffff); }},
      {"top_p", [](auto* p) { p->set_top_p(1); }},
      {"min_p", [](auto* p) { p->set_min_p(0); }},
      {"min_p -0", [](auto* p) { p->set_min_p(-0.0f); }},
      {"repetition", [](auto* p) { p->set_repetition_penalty(1); }},
      {"frequency", [](auto* p) { p->set_frequency_penalty(0); }},
      {"frequency -0", [](auto* p) { p->set_frequency_penalty(-0.0f); }},
      {"presence", [](auto* p) { p->set_presence_penalty(0); }},
      {"presence -0", [](auto* p) { p->set_presence_penalty(-0.0f); }},
      {"bias 0", [](auto* p) { p->add_logit_bias()->set_token(5); }},
      {"bias -0", [](auto* p) { p->add_logit_bias()->set_bias(-0.0f); }},
      {"bias below 2^-60", [](auto* p) { p->add_logit_bias()->set_bias(1e-30f); }},
      {"nan_policy", [](auto* p) { p->set_nan_policy(v1::NAN_POLICY_FAIL); }},
      {"chain", [](auto* p) { p->mutable_chain()->set_preset(v1::Chain::PRESET_VLLM); }},
      {"chain unspecified", [](auto* p) { p->mutable_chain()->set_preset(v1::Chain::PRESET_UNSPECIFIED); }},
      {"chain empty", [](auto* p) { p->mutable_chain(); }},
  };
  const SequenceSpec absent = MustCompile(SamplingParameters());
  EXPECT_FALSE(absent.stateful());
  for (const auto& [name, set] : off) {
    SamplingParameters parameters;
    set(&parameters);
    EXPECT_EQ(MustCompile(parameters), absent) << name;
  }
}

TEST(Parameters, OnValuesDifferFromAbsent) {
  const std::vector<std::pair<std::string, std::function<void(SamplingParameters*)>>> on = {
      {"temperature", [](auto* p) { p->set_temperature(0.5f); }},
      {"greedy", [](auto* p) { p->set_temperature(0); }},
      {"top_k", [](auto* p) { p->set_top_k(kVocabulary - 1); }},
      {"top_p", [](auto* p) { p->set_top_p(Below(1)); }},
      {"min_p", [](auto* p) { p->set_min_p(0.1f); }},
      {"repetition", [](auto* p) { p->set_repetition_penalty(Above(1)); }},
      {"frequency", [](auto* p) { p->set_frequency_penalty(-1); }},
      {"presence", [](auto* p) { p->set_presence_penalty(1); }},
      {"bias", [](auto* p) { p->add_logit_bias()->set_bias(1e-6f); }},
      {"allowed", [](auto* p) { p->add_allowed_token_ids(1); }},
      {"banned", [](auto* p) { p->add_banned_token_ids(1); }},
      {"nan_policy", [](auto* p) { p->set_nan_policy(v1::NAN_POLICY_MASK); }},
      {"raw_logprobs", [](auto* p) { p->mutable_raw_logprobs(); }},
      {"processed_logprobs", [](auto* p) { p->mutable_processed_logprobs(); }},
      {"tempered_logprobs", [](auto* p) { p->mutable_tempered_logprobs(); }},
      {"kept_log_mass", [](auto* p) { p->set_kept_log_mass(true); }},
  };
  const SequenceSpec absent = MustCompile(SamplingParameters());
  for (const auto& [name, set] : on) {
    SamplingParameters parameters;
    set(&parameters);
    EXPECT_NE(MustCompile(parameters), absent) << name;
  }
}

TEST(Parameters, GreedyIsTemperatureZeroOfEitherSign) {
  SamplingParameters zero, negative;
  zero.set_temperature(0);
  negative.set_temperature(-0.0f);
  EXPECT_TRUE(MustCompile(zero).parameters.greedy);
  EXPECT_EQ(MustCompile(zero), MustCompile(negative));
}

TEST(Parameters, ScalarsAreCompiledByLaw) {
  SamplingParameters parameters;
  parameters.set_temperature(0.7f);
  parameters.set_top_k(20);
  parameters.set_top_p(0.9f);
  parameters.set_min_p(0.05f);
  parameters.set_repetition_penalty(1.2f);
  parameters.set_frequency_penalty(0.5f);
  parameters.set_presence_penalty(-0.25f);
  parameters.mutable_raw_logprobs()->set_top(3);
  parameters.mutable_processed_logprobs()->set_top(1000);
  const SequenceSpec spec = MustCompile(parameters);

  kernels::RowParameters expected;
  law::Compile({0.7f, 20, 0.9f, 0.05f, 1.2f, 0.5f, -0.25f}, &expected);
  expected.raw_logprob = expected.processed_logprob = true;
  expected.raw_top = 3;
  expected.processed_top = 1000;
  EXPECT_EQ(spec.parameters, expected);
  EXPECT_EQ(spec.repetition_penalty, 1.2f);
  EXPECT_EQ(spec.frequency_penalty, 0.5f);
  EXPECT_EQ(spec.presence_penalty, -0.25f);
  EXPECT_TRUE(spec.stateful());
}

TEST(Parameters, EachPenaltyAloneNeedsState) {
  for (auto set : {&SamplingParameters::set_repetition_penalty, &SamplingParameters::set_frequency_penalty,
                   &SamplingParameters::set_presence_penalty}) {
    SamplingParameters parameters;
    (parameters.*set)(0.5f);
    EXPECT_TRUE(MustCompile(parameters).stateful());
  }
}

TEST(Parameters, LogprobsByName) {
  SamplingParameters parameters;
  for (const uint32_t token : {7u, 3u, 5u}) parameters.add_logprob_token_ids(token);
  ExpectRefused(parameters, Reason::kContradiction, "p.logprob_token_ids");
  parameters.mutable_raw_logprobs();
  EXPECT_EQ(MustCompile(parameters).logprob_token_ids, (std::vector<uint32_t>{7, 3, 5}));
  parameters.set_logprob_token_ids(1, 7);
  ExpectRefused(parameters, Reason::kContradiction, "p.logprob_token_ids");
  parameters.set_logprob_token_ids(1, 0xffffffff);
  ExpectRefused(parameters, Reason::kOutOfRange, "p.logprob_token_ids[1]");
  parameters.mutable_logprob_token_ids()->Resize(1001, 0);
  ExpectRefused(parameters, Reason::kTooMany, "p.logprob_token_ids");
}

TEST(Parameters, Watermark) {
  SamplingParameters parameters;
  parameters.mutable_watermark();
  ExpectRefused(parameters, Reason::kMissingField, "p.watermark.key");
  parameters.mutable_watermark()->set_key(0);
  const SequenceSpec spec = MustCompile(parameters);
  EXPECT_EQ(spec.history.watermark_width, 4u);
  EXPECT_TRUE(spec.stateful());
  for (const uint32_t width : {0u, 65u}) {
    parameters.mutable_watermark()->set_context_width(width);
    ExpectRefused(parameters, Reason::kOutOfRange, "p.watermark.context_width");
  }
}

TEST(Parameters, EntropyAndKeptSet) {
  SamplingParameters parameters;
  parameters.set_entropy(true);
  parameters.mutable_kept_set()->set_tokens(true);
  const kernels::RowParameters compiled = MustCompile(parameters).parameters;
  EXPECT_TRUE(compiled.entropy);
  EXPECT_TRUE(compiled.kept_tokens);
  EXPECT_FALSE(compiled.kept_count);
  EXPECT_FALSE(compiled.processed_logprob);
}

TEST(Parameters, TopLogprobsAreBounded) {
  SamplingParameters raw, processed;
  raw.mutable_raw_logprobs()->set_top(1000);
  processed.mutable_processed_logprobs()->set_top(1000);
  MustCompile(raw);
  MustCompile(processed);
  for (const uint32_t top : {1001u, 0xffffffffu}) {
    raw.mutable_raw_logprobs()->set_top(top);
    processed.mutable_processed_logprobs()->set_top(top);
    ExpectRefused(raw, Reason::kOutOfRange, "p.raw_logprobs.top");
    ExpectRefused(processed, Reason::kOutOfRange, "p.processed_logprobs.top");
  }
}

TEST(Parameters, BiasAtItsEdges) {
  for (const float bias : {Below(65504), Above(-65504), 1e-30f}) {
    SamplingParameters parameters;
    parameters.add_logit_bias()->set_bias(bias);
    MustCompile(parameters);
  }
  for (const float bias : {65504.0f, -65504.0f, kInfinity, -kInfinity, kNaN}) {
    SamplingParameters parameters;
    parameters.add_logit_bias()->set_bias(1);
    parameters.add_logit_bias()->set_token(1);
    parameters.mutable_logit_bias(1)->set_bias(bias);
    ExpectRefused(parameters, Reason::kOutOfRange, "p.logit_bias[1].bias");
  }
}

TEST(Parameters, ListsAreSortedAndMerged) {
  SamplingParameters parameters;
  for (const uint32_t token : {500u, 7u, 999u}) {
    v1::LogitBias& bias = *parameters.add_logit_bias();
    bias.set_token(token);
    bias.set_bias(static_cast<float>(token));
  }
  for (const uint32_t token : {999u, 0u}) parameters.add_banned_token_ids(token);
  for (const uint32_t token : {3u, 1u, 2u}) parameters.add_allowed_token_ids(token);
  const SequenceSpec spec = MustCompile(parameters);
  const std::vector<LogitEdit> expected = {
      {.token = 0, .flags = LogitEdit::kBanned},
      {.token = 7, .bias = law::CanonicalBits(7)},
      {.token = 500, .bias = law::CanonicalBits(500)},
      {.token = 999, .flags = LogitEdit::kBanned, .bias = law::CanonicalBits(999)},
  };
  EXPECT_EQ(spec.listed_edits, expected);
  EXPECT_TRUE(spec.has_allowed_tokens);
  EXPECT_EQ(spec.allowed_tokens, (std::vector<uint32_t>{1, 2, 3}));
}

TEST(Parameters, TokensTwiceInAList) {
  SamplingParameters bias, allowed, banned;
  for (const uint32_t token : {4u, 5u, 4u}) {
    bias.add_logit_bias()->set_token(token);
    allowed.add_allowed_token_ids(token);
    banned.add_banned_token_ids(token);
  }
  ExpectRefused(bias, Reason::kContradiction, "p.logit_bias[2].token");
  ExpectRefused(allowed, Reason::kContradiction, "p.allowed_token_ids");
  ExpectRefused(banned, Reason::kContradiction, "p.banned_token_ids");
}

TEST(Parameters, ListsThatMaskEveryTokenAreRefusedByName) {
  SamplingParameters allowed, banned, words;
  for (const uint32_t token : {4u, 5u}) {
    allowed.add_allowed_token_ids(token);
    allowed.add_banned_token_ids(token);
  }
  for (uint32_t token = 0; token < kVocabulary; ++token) {
    banned.add_banned_token_ids(token);
    words.add_bad_words()->add_tokens(token);
  }
  ExpectRefused(allowed, Reason::kContradiction, "p.allowed_token_ids");
  ExpectRefused(banned, Reason::kContradiction, "p.banned_token_ids");
  ExpectRefused(words, Reason::kContradiction, "p.bad_words");
  // With phases the lists may hold nowhere.
  v1::Phase& phase = *allowed.add_phases();
  phase.add_end(1);
  phase.mutable_parameters()->add_allowed_token_ids(1);
  SequenceSpec spec;
  EXPECT_FALSE(Compile(allowed, &spec).has_value());
  allowed.clear_phases();
  allowed.mutable_banned_token_ids()->RemoveLast();
  EXPECT_FALSE(Compile(allowed, &spec).has_value());
}

TEST(Parameters, TokensOutsideTheLiveVocabulary) {
  for (const uint32_t token : {kVocabulary, 0xffffffffu}) {
    SamplingParameters bias, allowed, banned;
    bias.add_logit_bias()->set_token(kVocabulary - 1);
    bias.add_logit_bias()->set_token(token);
    allowed.add_allowed_token_ids(kVocabulary - 1);
    allowed.add_allowed_token_ids(token);
    banned.add_banned_token_ids(token);
    ExpectRefused(bias, Reason::kOutOfRange, "p.logit_bias[1].token");
    ExpectRefused(allowed, Reason::kOutOfRange, "p.allowed_token_ids[1]");
    ExpectRefused(banned, Reason::kOutOfRange, "p.banned_token_ids[0]");
  }
}

TEST(Parameters, ListsAreBounded) {
  Limits limits;
  limits.max_listed_tokens = 2;
  SamplingParameters bias, allowed, banned;
  for (uint32_t token = 0; token < 2; ++token) {
    bias.add_logit_bias()->set_token(token);
    allowed.add_allowed_token_ids(token);
    banned.add_banned_token_ids(token);
  }
  SequenceSpec spec;
  EXPECT_FALSE(Compile(bias, &spec, limits).has_value());
  EXPECT_FALSE(Compile(allowed, &spec, limits).has_value());
  EXPECT_FALSE(Compile(banned, &spec, limits).has_value());
  bias.add_logit_bias()->set_token(2);
  allowed.add_allowed_token_ids(2);
  banned.add_banned_token_ids(2);
  ExpectRefused(bias, Reason::kTooMany, "p.logit_bias", limits);
  ExpectRefused(allowed, Reason::kTooMany, "p.allowed_token_ids", limits);
  ExpectRefused(banned, Reason::kTooMany, "p.banned_token_ids", limits);
}

TEST(Parameters, ScopeIsOffWithoutPenaltyOrAtDefault) {
  SamplingParameters scoped;
  scoped.mutable_penalty_scope()->set_window(64);
  EXPECT_EQ(MustCompile(scoped), MustCompile(SamplingParameters()));

  SamplingParameters penalty, same;
  penalty.set_presence_penalty(1);
  same.set_presence_penalty(1);
  same.mutable_penalty_scope()->set_window(0);
  same.mutable_penalty_scope()->set_repetition_counts_prompt(true);
  same.mutable_penalty_scope()->set_frequency_counts_prompt(false);
  same.mutable_penalty_scope()->set_ignored_prefix(0);
  EXPECT_EQ(MustCompile(same), MustCompile(penalty));
  EXPECT_TRUE(MustCompile(penalty).history.Words().empty());
}

TEST(Parameters, EveryPartOfScopeChangesHistory) {
  std::set<std::vector<uint64_t>> words;
  for (const auto& set : std::vector<std::function<void(v1::PenaltyScope*)>>{
           [](auto*) {}, [](auto* scope) { scope->set_window(64); }, [](auto* scope) { scope->set_ignored_prefix(64); },
           [](auto* scope) { scope->set_repetition_counts_prompt(false); },
           [](auto* scope) { scope->set_frequency_counts_prompt(true); }}) {
    SamplingParameters parameters;
    parameters.set_presence_penalty(1);
    set(parameters.mutable_penalty_scope());
    EXPECT_TRUE(words.insert(MustCompile(parameters).history.Words()).second);
  }
}

TEST(Parameters, ScopesAreBounded) {
  const uint32_t most = Limits().max_history;
  SamplingParameters window, prefix;
  window.mutable_penalty_scope()->set_window(most);
  prefix.mutable_penalty_scope()->set_ignored_prefix(most);
  MustCompile(window);
  MustCompile(prefix);
  window.mutable_penalty_scope()->set_window(most + 1);
  prefix.mutable_penalty_scope()->set_ignored_prefix(most + 1);
  ExpectRefused(window, Reason::kOutOfRange, "p.penalty_scope.window");
  ExpectRefused(prefix, Reason::kOutOfRange, "p.penalty_scope.ignored_prefix");
}

}  // namespace
}  // namespace sortition::service::parameters_test
