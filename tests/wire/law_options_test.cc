// Options of the law: every end of every range, combinations that contradict each other, and orders by name.
#include "service/wire/law_options.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/law/chain.h"
#include "kernels/law/options.h"
#include "service/limits.h"
#include "service/policy/parameter_limit.h"
#include "service/wire/compile_parameters.h"
#include "tests/wire/float_ends.h"

namespace sortition::service::law_options_test {
namespace {

using kernels::StageKind;
using v1::SamplingParameters;

std::optional<Refusal> Take(const SamplingParameters& parameters, law::SamplingParameters* law) {
  *law = {};
  return TakeLawOptions(parameters, 1000, "p", law);
}

std::vector<StageKind> KindsOf(const SamplingParameters& parameters) {
  law::SamplingParameters law;
  const std::optional<Refusal> refusal = Take(parameters, &law);
  EXPECT_FALSE(refusal.has_value()) << refusal->field << ": " << refusal->message;
  std::vector<StageKind> kinds;
  for (const kernels::Stage& stage : law::CompileChain(law)) kinds.push_back(stage.kind);
  return kinds;
}

void ExpectRefused(const SamplingParameters& parameters, Reason reason, const std::string& field) {
  law::SamplingParameters law;
  const std::optional<Refusal> refusal = Take(parameters, &law);
  ASSERT_TRUE(refusal.has_value()) << field << " " << parameters.ShortDebugString();
  EXPECT_EQ(refusal->reason, reason) << ReasonName(refusal->reason);
  EXPECT_EQ(refusal->field, field);
}

// Sets the other fields that an option needs to be accepted at both ends of its range.
void SetBeside(absl::string_view field, SamplingParameters* p) {
  if (absl::StartsWith(field, "adaptive_p.")) p->mutable_adaptive_p()->set_target(0.5f);
  if (absl::StartsWith(field, "mirostat.")) p->mutable_mirostat()->set_version(1);
  if (absl::StartsWith(field, "watermark.")) p->mutable_watermark()->set_key(1);
  if (absl::StartsWith(field, "dry.")) p->mutable_dry()->set_multiplier(1);
  if (field == "min_tokens") p->add_stop_token_ids(1);
  if (field == "repetition_stop.repeats") p->mutable_repetition_stop()->set_max_period(1);
  if (field == "repetition_stop.min_period") p->mutable_repetition_stop()->set_max_period(512);
}

std::optional<Refusal> CompileWith(const law::NumberOption& number, double value, const Limits& limits) {
  const absl::string_view field(number.field.data(), number.field.size());
  SamplingParameters parameters;
  SetBeside(field, &parameters);
  SetField(std::string(field), value, &parameters);
  SequenceSpec spec;
  spec.vocabulary = spec.live_vocabulary = 1000;
  return CompileParameters(parameters, limits, "p", &spec);
}

TEST(LawOptions, EveryNumberAtTheEndsOfItsRange) {
  const Limits limits = {.max_history = 50};
  for (const law::NumberOption& number : law::kNumberOptions) {
    if (number.form == law::RangeForm::kOffAbove) continue;  // takes any number
    const bool is_limited = number.form == law::RangeForm::kUpTo;
    const double limit = number.most.limit == "max_history" ? 50 : kMaxStringTokens;
    const double most = is_limited ? limit : number.most.value;
    const bool is_count = number.member.count != nullptr || number.field.starts_with("repetition_stop.") ||
                          is_limited || number.least == 1;
    std::vector<double> inside = {number.least, most, number.value};
    std::vector<double> outside = {most + 1};
    if (number.form == law::RangeForm::kZeroOr) inside.push_back(0);
    if (number.form == law::RangeForm::kOneOr) inside.push_back(1);
    if (!is_count) outside = {Above(static_cast<float>(most)), kNaN, -kInfinity};
    if (!is_count) outside.push_back(Below(static_cast<float>(number.least)));
    if (is_count && number.least > 1) outside.push_back(number.least - 1);
    if (number.form == law::RangeForm::kAboveLow) {
      inside.front() = Above(static_cast<float>(number.least));
      outside.push_back(number.least);
    }
    for (const double value : inside) {
      const auto refusal = CompileWith(number, value, limits);
      EXPECT_FALSE(refusal) << number.field << " " << value << ": " << refusal->message;
    }
    for (const double value : outside) {
      const auto refusal = CompileWith(number, value, limits);
      ASSERT_TRUE(refusal) << number.field << " " << value;
      EXPECT_EQ(refusal->reason, Reason::kOutOfRange) << number.field;
      EXPECT_EQ(refusal->field, "p." + std::string(number.field));
      if (!is_limited) continue;
      EXPECT_EQ(refusal->limit, absl::StrCat(std::string(number.most.limit), " ", limit));
    }
  }
}

TEST(LawOptions, AdaptivePNeedsItsTarget) {
  SamplingParameters no_target;
  no_target.mutable_adaptive_p();
  ExpectRefused(no_target, Reason::kMissingField, "p.adaptive_p.target");
}

TEST(LawOptions, ContradictionsAreNamed) {
  SamplingParameters both;
  both.mutable_mirostat()->set_version(2);
  both.mutable_adaptive_p()->set_target(0.5f);
  ExpectRefused(both, Reason::kContradiction, "p.adaptive_p");

  const std::vector<std::pair<std::string, std::function<void(SamplingParameters*)>>> not_greedy = {
      {"p.typical_p", [](auto* p) { p->set_typical_p(0.5f); }},
      {"p.xtc", [](auto* p) { p->mutable_xtc()->set_probability(0.5f); }},
      {"p.mirostat", [](auto* p) { p->mutable_mirostat()->set_version(2); }},
      {"p.adaptive_p", [](auto* p) { p->mutable_adaptive_p()->set_target(0.5f); }},
      {"p.dynamic_temperature", [](auto* p) { p->mutable_dynamic_temperature()->set_range(0.5f); }},
  };
  for (const auto& [field, set] : not_greedy) {
    SamplingParameters parameters;
    set(&parameters);
    KindsOf(parameters);
    parameters.set_temperature(0);
    ExpectRefused(parameters, Reason::kContradiction, field);
  }
}

// min_keep is part of the filters that are on. If it is above 1, they are a chain.
TEST(LawOptions, MinKeepIsPartOfFilters) {
  SequenceSpec spec;
  spec.vocabulary = spec.live_vocabulary = 1000;
  SamplingParameters parameters;
  parameters.set_top_p(0.5f);
  parameters.set_temperature(0.5f);
  parameters.set_top_k(3);
  for (const uint32_t least : {0u, 1u, 7u}) {
    parameters.set_min_keep(least);
    ASSERT_FALSE(CompileParameters(parameters, Limits(), "p", &spec).has_value());
    ASSERT_EQ(spec.parameters.chain.size(), least == 7 ? 3u : 0u);
  }
  EXPECT_EQ(spec.parameters.chain[1].operands[0], 7u);
  EXPECT_EQ(spec.parameters.chain[2].operands[3], 7u);
  parameters.clear_top_p();
  parameters.clear_top_k();
  ASSERT_FALSE(CompileParameters(parameters, Limits(), "p", &spec).has_value());
  EXPECT_TRUE(spec.parameters.chain.empty());
}

TEST(LawOptions, MinKIsOnWherePresent) {
  SamplingParameters parameters;
  EXPECT_TRUE(KindsOf(parameters).empty());
  parameters.mutable_min_k();
  EXPECT_EQ(KindsOf(parameters), std::vector{StageKind::kMinK});
}

SamplingParameters Usual() {
  SamplingParameters parameters;
  parameters.set_temperature(0.8f);
  parameters.set_top_k(50);
  parameters.set_top_p(0.9f);
  parameters.set_min_p(0.1f);
  parameters.set_typical_p(0.9f);
  return parameters;
}

TEST(LawOptions, PresetsEqualPeersOrders) {
  SamplingParameters parameters = Usual();
  EXPECT_EQ(KindsOf(parameters), (std::vector{StageKind::kTemperature, StageKind::kMinP, StageKind::kTopK,
                                              StageKind::kTopP, StageKind::kTypicalP}));
  parameters.mutable_chain()->set_preset(v1::Chain::PRESET_LLAMA_CPP);
  EXPECT_EQ(KindsOf(parameters), (std::vector{StageKind::kTopK, StageKind::kTypicalP, StageKind::kTopP,
                                              StageKind::kMinP, StageKind::kTemperature}));
  parameters.mutable_chain()->set_preset(v1::Chain::PRESET_HF);
  EXPECT_EQ(KindsOf(parameters), (std::vector{StageKind::kTemperature, StageKind::kTopK, StageKind::kTopP,
                                              StageKind::kMinP, StageKind::kTypicalP}));
}

TEST(LawOptions, ExplicitOrders) {
  SamplingParameters parameters = Usual();
  auto* const samplers = parameters.mutable_chain()->mutable_explicit_()->mutable_samplers();
  for (const char* name : {"typical_p", "top_p", "p_less", "temperature", "min_p"}) *samplers->Add() = name;
  ExpectRefused(parameters, Reason::kContradiction, "p.top_k");
  *samplers->Add() = "top_k";
  EXPECT_EQ(KindsOf(parameters), (std::vector{StageKind::kTypicalP, StageKind::kTopP, StageKind::kTemperature,
                                              StageKind::kMinP, StageKind::kTopK}));
  *samplers->Add() = "dynamic_temperature";
  ExpectRefused(parameters, Reason::kContradiction, "p.chain.explicit.samplers[6]");
  *samplers->Mutable(6) = "mirostat";
  *samplers->Add() = "xtc";
  ExpectRefused(parameters, Reason::kContradiction, "p.chain.explicit.samplers[7]");
  for (const char* name : {"repetition_penalty", "", "top-k"}) {
    *samplers->Mutable(7) = name;
    ExpectRefused(parameters, Reason::kOutOfRange, "p.chain.explicit.samplers[7]");
  }
}

// Options that need no chain have none under any preset; all others have only the chain.
TEST(LawOptions, OnlyDifferentOrdersNeedAChain) {
  SequenceSpec spec;
  spec.vocabulary = spec.live_vocabulary = 1000;
  SamplingParameters parameters = Usual();
  parameters.clear_typical_p();
  for (const bool is_llama : {false, true}) {
    if (is_llama) parameters.mutable_chain()->set_preset(v1::Chain::PRESET_LLAMA_CPP);
    ASSERT_FALSE(CompileParameters(parameters, Limits(), "p", &spec).has_value());
    EXPECT_EQ(spec.parameters.chain.size(), is_llama ? 4u : 0u);
    EXPECT_EQ(spec.parameters.top_k, is_llama ? 0u : 50u);
  }
  parameters.clear_temperature();
  parameters.clear_min_p();
  ASSERT_FALSE(CompileParameters(parameters, Limits(), "p", &spec).has_value());
  EXPECT_EQ(spec.parameters.chain.size(), 0u);
  EXPECT_EQ(spec.parameters.top_k, 50u);
}

}  // namespace
}  // namespace sortition::service::law_options_test
