// Options of the law: every end of every range, combinations that contradict each other, and orders by name.
#include "service/request/law_options.h"

#include <gtest/gtest.h>

#include <functional>

#include "kernels/law/chain.h"
#include "service/request/parameters.h"
#include "tests/service/float_ends.h"

namespace sortition::service {
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

void ExpectChainRefused(const SamplingParameters& parameters, Reason reason, const std::string& field) {
  law::SamplingParameters law;
  const std::optional<Refusal> refusal = Take(parameters, &law);
  ASSERT_TRUE(refusal.has_value()) << field << " " << parameters.ShortDebugString();
  EXPECT_EQ(refusal->reason, reason) << ReasonName(refusal->reason);
  EXPECT_EQ(refusal->field, field);
}

TEST(LawOptions, EveryEndOfEveryRange) {
  struct Case {
    const char* field;
    std::function<void(SamplingParameters*, float)> set;
    std::vector<float> inside;
    std::vector<float> outside;
  };
  const std::vector<Case> cases = {
      {"p.typical_p", [](auto* p, float x) { p->set_typical_p(x); }, {1e-30f, 1}, {0, Above(1), -0.1f, kNaN}},
      {"p.top_n_sigma",
       [](auto* p, float x) { p->set_top_n_sigma(x); },
       {0, -0.0f, 0.01f, 100},
       {-1, Above(100), kNaN}},
      {"p.epsilon_cutoff", [](auto* p, float x) { p->set_epsilon_cutoff(x); }, {0, 1e-30f, 1}, {-1, Above(1), kNaN}},
      {"p.eta_cutoff", [](auto* p, float x) { p->set_eta_cutoff(x); }, {0, 1}, {-1, Above(1), kNaN}},
      {"p.top_a", [](auto* p, float x) { p->set_top_a(x); }, {0, 1}, {-1, Above(1), kNaN}},
      {"p.top_h", [](auto* p, float x) { p->set_top_h(x); }, {0, 1}, {-1, Above(1), kNaN}},
      {"p.min_k.tau", [](auto* p, float x) { p->mutable_min_k()->set_tau(x); }, {0, 100}, {-1, Above(100), kNaN}},
      {"p.xtc.probability", [](auto* p, float x) { p->mutable_xtc()->set_probability(x); }, {0, 1}, {-1, Above(1)}},
      {"p.xtc.threshold",
       [](auto* p, float x) { p->mutable_xtc()->set_threshold(x); },
       {1e-9f, 1},
       {0, Above(1), kNaN}},
      {"p.dynamic_temperature.range",
       [](auto* p, float x) { p->mutable_dynamic_temperature()->set_range(x); },
       {0, 100},
       {-1, Above(100), kNaN}},
      {"p.dynamic_temperature.exponent",
       [](auto* p, float x) { p->mutable_dynamic_temperature()->set_exponent(x); },
       {0.01f, 10},
       {0, Below(0.01f), Above(10)}},
      {"p.quadratic_smoothing.factor",
       [](auto* p, float x) { p->mutable_quadratic_smoothing()->set_factor(x); },
       {0, 100},
       {-1, Above(100), kNaN}},
      {"p.quadratic_smoothing.curve",
       [](auto* p, float x) { p->mutable_quadratic_smoothing()->set_curve(x); },
       {1, 3},
       {Below(1), Above(3), kNaN}},
      {"p.mirostat.tau", [](auto* p, float x) { p->mutable_mirostat()->set_tau(x); }, {0.1f, 20}, {0, Above(20)}},
      {"p.mirostat.eta", [](auto* p, float x) { p->mutable_mirostat()->set_eta(x); }, {0.1f, 1}, {0, Above(1), kNaN}},
      {"p.adaptive_p.target",
       [](auto* p, float x) { p->mutable_adaptive_p()->set_target(x); },
       {0, 1},
       {-1, Above(1), kNaN}},
      {"p.adaptive_p.decay",
       [](auto* p, float x) {
         p->mutable_adaptive_p()->set_target(0.5f);
         p->mutable_adaptive_p()->set_decay(x);
       },
       {0, 0.99f},
       {-1, Above(0.99f), kNaN}},
  };
  for (const Case& test : cases) {
    for (const float value : test.inside) {
      SamplingParameters parameters;
      test.set(&parameters, value);
      KindsOf(parameters);
    }
    for (const float value : test.outside) {
      SamplingParameters parameters;
      test.set(&parameters, value);
      ExpectChainRefused(parameters, Reason::kOutOfRange, test.field);
    }
  }
}

TEST(LawOptions, VersionsAndCounts) {
  SamplingParameters parameters;
  parameters.mutable_mirostat()->set_version(3);
  ExpectChainRefused(parameters, Reason::kOutOfRange, "p.mirostat.version");
  parameters.mutable_mirostat()->set_version(1);
  for (const uint32_t m : {1u, 1001u}) {
    parameters.mutable_mirostat()->set_m(m);
    ExpectChainRefused(parameters, Reason::kOutOfRange, "p.mirostat.m");
  }
  SamplingParameters least;
  least.set_min_keep(1001);
  ExpectChainRefused(least, Reason::kOutOfRange, "p.min_keep");
  SamplingParameters no_target;
  no_target.mutable_adaptive_p();
  ExpectChainRefused(no_target, Reason::kMissingField, "p.adaptive_p.target");
}

TEST(LawOptions, ContradictionsAreNamed) {
  SamplingParameters both;
  both.mutable_mirostat()->set_version(2);
  both.mutable_adaptive_p()->set_target(0.5f);
  ExpectChainRefused(both, Reason::kContradiction, "p.adaptive_p");

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
    ExpectChainRefused(parameters, Reason::kContradiction, field);
  }
}

// min_keep is part of the filters that are on. Where it asks for more than one token, they are a chain.
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
  ExpectChainRefused(parameters, Reason::kContradiction, "p.top_k");
  *samplers->Add() = "top_k";
  EXPECT_EQ(KindsOf(parameters), (std::vector{StageKind::kTypicalP, StageKind::kTopP, StageKind::kTemperature,
                                              StageKind::kMinP, StageKind::kTopK}));
  *samplers->Add() = "dynamic_temperature";
  ExpectChainRefused(parameters, Reason::kContradiction, "p.chain.explicit.samplers[6]");
  *samplers->Mutable(6) = "mirostat";
  *samplers->Add() = "xtc";
  ExpectChainRefused(parameters, Reason::kContradiction, "p.chain.explicit.samplers[7]");
  for (const char* name : {"repetition_penalty", "", "top-k"}) {
    *samplers->Mutable(7) = name;
    ExpectChainRefused(parameters, Reason::kOutOfRange, "p.chain.explicit.samplers[7]");
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
}  // namespace sortition::service
