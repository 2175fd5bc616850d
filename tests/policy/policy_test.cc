// Files of policies: their content, and the effect of each rule on an open.
#include "service/policy/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "service/policy/policy_book.h"
#include "service/wire/parameter_table.h"
#include "tests/support/messages.h"

namespace sortition::service::policy_test {
namespace {

using ::testing::HasSubstr;

// Files by their paths.
class PolicyFile : public ::testing::Test {
 protected:
  absl::StatusOr<PolicyList> Parse(const std::string& text, bool writes_receipts = true) {
    const auto read = [this](const std::string& path) -> absl::StatusOr<std::string> {
      const auto it = files_.find(path);
      if (it == files_.end()) return absl::NotFoundError("cannot be read");
      return it->second;
    };
    return ParsePolicies(text, Limits(), writes_receipts, read);
  }
  // One tenant's policy with these members.
  absl::StatusOr<PolicyList> ParseRules(const std::string& rules, bool writes_receipts = true) {
    return Parse(R"({"policies": [{"tenant": "a", )" + rules + "}]}", writes_receipts);
  }
  void ExpectError(const absl::StatusOr<PolicyList>& list, const std::string& part) {
    ASSERT_FALSE(list.ok());
    EXPECT_THAT(std::string(list.status().message()), HasSubstr(part));
  }
  // Applies the rules to an open of tenant "a".
  std::optional<Refusal> Apply(const std::string& rules) {
    const auto list = ParseRules(rules);
    EXPECT_TRUE(list.ok()) << list.status();
    effect_.Clear();
    return list.ok() ? ApplyPolicy(list->Of("a").get(), "open", open_.mutable_parameters(),
                                   open_.mutable_watermark_key_id(), &effect_)
                     : std::nullopt;
  }

  std::map<std::string, std::string> files_ = {{"keys", "new 11 5 # of today\n\nold 7\n"}};
  v1::OpenSequence open_;
  v1::PolicyEffect effect_;
};

TEST_F(PolicyFile, TenantHasItsOwnOrTheDefault) {
  const auto list = Parse(R"({"policies": [{"tenant": "*", "defaults": {"topK": 5}}, {"tenant": "a"}]})");
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(list->Of("a")->message.tenant(), "a");
  EXPECT_EQ(list->Of("b")->message.defaults().top_k(), 5u);
  EXPECT_EQ(Parse("{}")->Of("a"), nullptr);
}

TEST_F(PolicyFile, MistakesAreNamed) {
  ExpectError(Parse("{"), "");
  ExpectError(ParseRules(R"("colour": 1)"), "colour");
  ExpectError(ParseRules(R"("defaults": {"hot": 1})"), "hot");
  ExpectError(Parse(R"({"policies": [{"tenant": "a"}, {"tenant": "a"}]})"), "tenant a: has two policies");
  ExpectError(Parse(R"({"policies": [{}]})"), "policies[].tenant: must be set");
  ExpectError(ParseRules(R"("watermark": {})"), "tenant a: watermark.keys: a required watermark needs");
  ExpectError(ParseRules(R"("watermark": {"keys": "none"})"), "none: cannot be read");
  ExpectError(ParseRules(R"("receipts": true)", false), "receipts: the server writes none");
  ExpectError(ParseRules(R"("maxPriority": -1)"), "tenant a: max_priority: must be 0..100");
  ExpectError(ParseRules(R"("maxPriority": 101)"), "max_priority");
  ExpectError(ParseRules(R"("defaults": {"topP": 2})"), "defaults.top_p");
  ExpectError(ParseRules(R"("defaults": {"watermark": {"key": "1"}})"), "defaults.watermark");
}

TEST_F(PolicyFile, ContradictingLimitsAreNamed) {
  const auto limit = [&](const std::string& members, const std::string& rest = "") {
    return ParseRules(rest + R"("limits": [{"field": )" + members + "}]");
  };
  ExpectError(limit(R"("heat", "max": 1)"), "limits: heat: SamplingParameters has no such field");
  ExpectError(limit(R"("temperature")"), "needs min, max or banned");
  ExpectError(limit(R"("temperature", "min": 2, "max": 1)"), "min is above max");
  ExpectError(limit(R"("top_k", "max": 1.5)"), "1.5 is no value of the field");
  ExpectError(limit(R"("logit_bias", "max": 1)"), "it can only be banned");
  ExpectError(limit(R"("dry", "banned": true, "max": 1)"), "banned excludes");
  ExpectError(limit(R"("temperature", "max": 1)", R"("defaults": {"temperature": 1.5}, )"), "own default");
  ExpectError(limit(R"("dry", "banned": true)", R"("defaults": {"dry": {"multiplier": 1}}, )"), "own default");
  ExpectError(limit(R"("watermark", "banned": true)", R"("watermark": {"keys": "keys"}, )"), "sets the watermark");
  ExpectError(limit(R"("top_k", "max": 1}, {"field": "top_k", "min": 1)"), "limits: top_k: is limited twice");
}

// Such a policy would refuse every open that sets nothing.
TEST_F(PolicyFile, OwnValueThatLeavesNoMarkIsNamed) {
  const std::string marked = R"("watermark": {"keys": "keys"}, )";
  const auto limit = [&](const std::string& members) {
    return ParseRules(marked + R"("limits": [{"field": )" + members + "}]");
  };
  ExpectError(limit(R"("temperature", "max": 0)"), "watermark: temperature must be > 0");
  ExpectError(limit(R"("top_k", "max": 1)"), "watermark: top_k must be >= 2");
  ExpectError(limit(R"("min_p", "min": 1)"), "watermark: min_p must be < 1");
  ExpectError(ParseRules(marked + R"("defaults": {"temperature": 0})"), "watermark: temperature must be > 0");
  ExpectError(ParseRules(marked + R"("defaults": {"allowedTokenIds": [7]})"), "watermark: allowed_token_ids");
  EXPECT_TRUE(ParseRules(R"("limits": [{"field": "top_k", "max": 1}])").ok());
  EXPECT_TRUE(limit(R"("top_k", "max": 2)").ok());
  EXPECT_TRUE(ParseRules(marked + R"("defaults": {"topK": 1, "minKeep": 2})").ok());
}

// A value that a limit would put in force is one that an open can have.
TEST_F(PolicyFile, BoundOutOfRangeIsNamed) {
  const auto limit = [&](const std::string& members) {
    return ParseRules(R"("limits": [{"field": )" + members + "}]");
  };
  ExpectError(limit(R"("top_p", "max": 0)"), "limits: top_p: 0 is no value of the field, which is");
  ExpectError(limit(R"("temperature", "min": 0.001)"), "limits: temperature: 0.001 is no value");
  ExpectError(limit(R"("temperature", "max": 1000)"), "limits: temperature: 1000 is no value");
  ExpectError(limit(R"("dry.base", "max": 0.5)"), "limits: dry.base: 0.5 is no value");
  ExpectError(limit(R"("min_keep", "min": 2000)"), "limits: min_keep: 2000 is no value");
  for (const char* const members : {R"("temperature", "min": 0, "max": 100)", R"("top_k", "max": 50)",
                                    R"("min_tokens", "max": 9)", R"("mirostat.tau", "max": 20)"}) {
    EXPECT_TRUE(limit(members).ok()) << limit(members).status();
  }
}

TEST_F(PolicyFile, KeyLinesAreChecked) {
  const auto keys = ParseMarkKeys(files_["keys"]);
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(*keys, (std::vector<MarkKey>{{"new", 11, 5}, {"old", 7, 4}}));
  for (const auto& [text, part] : std::map<std::string, std::string>{{"", "has no key"},
                                                                     {"a", "line 1: expected ID KEY"},
                                                                     {"a 1 2 3", "line 1: expected ID KEY"},
                                                                     {"\na x", "line 2: a key is a decimal"},
                                                                     {"a 1 65", "a context width is 1..64"},
                                                                     {"a 1\na 2", "line 2: an earlier line"}}) {
    EXPECT_THAT(std::string(ParseMarkKeys(text).status().message()), HasSubstr(part));
  }
}

TEST_F(PolicyFile, DefaultsFillWhatIsNotSet) {
  open_.mutable_parameters()->set_top_p(0.5f);
  EXPECT_FALSE(Apply(R"("defaults": {"topP": 0.9, "topK": 5, "stopTokenIds": [1, 2]})"));
  EXPECT_EQ(open_.parameters().top_p(), 0.5f);
  EXPECT_EQ(open_.parameters().top_k(), 5u);
  EXPECT_EQ(open_.parameters().stop_token_ids_size(), 2);
  EXPECT_EQ(effect_.applied().ShortDebugString(), "top_k: 5 stop_token_ids: 1 stop_token_ids: 2");
}

TEST_F(PolicyFile, ValueBeyondLimitIsRefusedByName) {
  open_.mutable_parameters()->set_temperature(1.5f);
  auto refusal = Apply(R"("limits": [{"field": "temperature", "min": 0.1, "max": 1.2}])");
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->reason, Reason::kOutOfRange);
  EXPECT_EQ(refusal->field, "open.parameters.temperature");
  EXPECT_EQ(refusal->limit, "<= 1.2");
  EXPECT_THAT(refusal->message, HasSubstr("operator's policy"));
  open_.mutable_parameters()->set_temperature(1.2f);  // a bound in float's precision
  EXPECT_FALSE(Apply(R"("limits": [{"field": "temperature", "min": 0.1, "max": 1.2}])"));
  refusal = Apply(R"("limits": [{"field": "temperature", "banned": true}])");
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->limit, "absent");
}

// The law's default of an absent field counts like a value that is set.
TEST_F(PolicyFile, AbsentFieldHasItsDefault) {
  EXPECT_TRUE(Apply(R"("limits": [{"field": "temperature", "max": 0.9}])"));
  EXPECT_TRUE(Apply(R"("limits": [{"field": "top_k", "max": 50}])"));  // off is all tokens
  EXPECT_FALSE(Apply(R"("limits": [{"field": "top_k", "min": 2}])"));
  EXPECT_FALSE(Apply(R"("limits": [{"field": "dry.base", "max": 1.5}])"));  // DRY is off as a whole
  open_.mutable_parameters()->mutable_dry()->set_multiplier(1);
  EXPECT_TRUE(Apply(R"("limits": [{"field": "dry.base", "max": 1.5}])"));
  open_.mutable_parameters()->mutable_min_k();
  EXPECT_TRUE(Apply(R"("limits": [{"field": "min_k.tau", "max": 2}])"));
  EXPECT_FALSE(Apply(R"("limits": [{"field": "min_k.tau", "min": 1, "max": 3}])"));
  EXPECT_FALSE(Apply(R"("limits": [{"field": "penalty_scope.window", "max": 100}])"));  // no penalty is on
  open_.mutable_parameters()->set_presence_penalty(1);
  EXPECT_TRUE(Apply(R"("limits": [{"field": "penalty_scope.window", "max": 100}])"));  // all of the history
  open_.mutable_parameters()->mutable_chain()->set_preset(v1::Chain::PRESET_LLAMA_CPP);
  EXPECT_FALSE(Apply(R"("limits": [{"field": "penalty_scope.window", "max": 100}])"));  // 64 tokens
  EXPECT_TRUE(Apply(R"("limits": [{"field": "penalty_scope.window", "min": 100}])"));
}

TEST_F(PolicyFile, AppliedLimitIsStated) {
  open_.mutable_parameters()->set_temperature(3);
  open_.mutable_parameters()->mutable_dry()->set_multiplier(2);
  open_.mutable_parameters()->mutable_xtc()->set_probability(1);
  EXPECT_FALSE(Apply(R"("limits": [
      {"field": "temperature", "max": 1.25, "violation": "VIOLATION_APPLY"},
      {"field": "top_k", "max": 50, "violation": "VIOLATION_APPLY"},
      {"field": "dry.multiplier", "max": 1, "violation": "VIOLATION_APPLY"},
      {"field": "xtc", "banned": true, "violation": "VIOLATION_APPLY"}])"));
  EXPECT_EQ(open_.parameters().ShortDebugString(), "temperature: 1.25 top_k: 50 dry { multiplier: 1 }");
  EXPECT_EQ(effect_.ShortDebugString(),
            "applied { temperature: 1.25 top_k: 50 dry { multiplier: 1 } } removed: \"xtc\"");
}

TEST_F(PolicyFile, PhaseCannotPassLimit) {
  v1::Phase& phase = *open_.mutable_parameters()->add_phases();
  phase.mutable_parameters()->set_temperature(2);
  const auto refusal = Apply(R"("limits": [{"field": "temperature", "max": 1, "violation": "VIOLATION_APPLY"}])");
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->field, "open.parameters.phases[0].parameters.temperature");
}

// Each limit of a filter also bounds min_keep, which keeps tokens in spite of the filter.
TEST_F(PolicyFile, MinKeepPassesNoLimitOfAFilter) {
  const std::map<std::string, uint32_t> most = {
      {R"("top_k", "max": 50)", 50},          {R"("top_p", "max": 0.9)", 1},      {R"("typical_p", "max": 0.9)", 1},
      {R"("top_n_sigma", "max": 2)", 1},      {R"("top_h", "max": 0.5)", 1},      {R"("min_p", "min": 0.1)", 1},
      {R"("epsilon_cutoff", "min": 0.1)", 1}, {R"("eta_cutoff", "min": 0.1)", 1}, {R"("top_a", "min": 0.1)", 1}};
  for (const auto& [members, bound] : most) {
    for (const bool applies : {false, true}) {
      const std::string rules =
          R"("limits": [{"field": )" + members + (applies ? R"(, "violation": "VIOLATION_APPLY"}])" : "}]");
      open_.Clear();
      v1::SamplingParameters& p = *open_.mutable_parameters();
      for (const auto set : {&v1::SamplingParameters::set_top_p, &v1::SamplingParameters::set_typical_p,
                             &v1::SamplingParameters::set_top_n_sigma, &v1::SamplingParameters::set_top_h,
                             &v1::SamplingParameters::set_min_p, &v1::SamplingParameters::set_epsilon_cutoff,
                             &v1::SamplingParameters::set_eta_cutoff, &v1::SamplingParameters::set_top_a}) {
        (p.*set)(0.5f);
      }
      p.set_top_k(5);
      p.set_min_keep(bound);
      EXPECT_FALSE(Apply(rules)) << members;
      EXPECT_FALSE(effect_.has_applied()) << members;
      p.set_min_keep(1000);
      const auto refusal = Apply(rules);
      ASSERT_EQ(refusal.has_value(), !applies) << members;
      EXPECT_EQ(p.min_keep(), applies ? bound : 1000u) << members;
      if (applies) {
        EXPECT_EQ(effect_.applied().ShortDebugString(), "min_keep: " + std::to_string(bound)) << members;
      } else {
        EXPECT_EQ(refusal->field, "open.parameters.min_keep") << members;
        EXPECT_EQ(refusal->limit, "<= " + std::to_string(bound)) << members;
      }
      p.set_min_keep(bound);
      p.add_phases()->mutable_parameters()->set_min_keep(bound + 1);
      const auto within = Apply(rules);
      ASSERT_TRUE(within) << members;
      EXPECT_EQ(within->field, "open.parameters.phases[0].parameters.min_keep") << members;
    }
  }
}

TEST_F(PolicyFile, OwnLimitOfMinKeepReplacesAllButThatOfTopK) {
  const auto rules = [](const std::string& filter) {
    return R"("limits": [{"field": )" + filter + R"(}, {"field": "min_keep", "max": 8}])";
  };
  open_.mutable_parameters()->set_top_p(0.5f);
  open_.mutable_parameters()->set_top_k(3);
  open_.mutable_parameters()->set_min_keep(8);
  EXPECT_FALSE(Apply(rules(R"("top_p", "max": 0.9)")));
  EXPECT_TRUE(Apply(rules(R"("top_k", "max": 5)")));
  open_.mutable_parameters()->set_min_keep(9);
  EXPECT_TRUE(Apply(rules(R"("top_p", "max": 0.9)")));
  // A bound that lets the filter be off bounds nothing.
  EXPECT_FALSE(Apply(R"("limits": [{"field": "top_p", "max": 1}, {"field": "min_p", "min": 0}])"));
}

TEST_F(PolicyFile, FilterThatIsOffIsBeyondItsMax) {
  for (const std::string field : {"top_n_sigma", "top_h", "top_k"}) {
    const auto refusal = Apply(R"("limits": [{"field": ")" + field + R"(", "max": 1}])");
    ASSERT_TRUE(refusal) << field;
    EXPECT_EQ(refusal->field, "open.parameters." + field);
    ExpectError(ParseRules(R"("limits": [{"field": ")" + field + R"(", "max": 0}])"), "0 is no max");
  }
}

TEST_F(PolicyFile, RangeStaysWithinTheLimitOfTemperature) {
  const std::string limit = R"("limits": [{"field": "temperature", "min": 0.5, "max": 1)";
  const std::string refuses = limit + "}]", applies = limit + R"(, "violation": "VIOLATION_APPLY"}])";
  v1::SamplingParameters& p = *open_.mutable_parameters();
  p.set_temperature(0.75f);
  p.mutable_dynamic_temperature()->set_range(0.25f);
  p.mutable_dynamic_temperature()->set_exponent(2);
  EXPECT_FALSE(Apply(refuses));
  p.mutable_dynamic_temperature()->set_range(0.26f);
  const auto refusal = Apply(refuses);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->field, "open.parameters.dynamic_temperature.range");
  EXPECT_EQ(refusal->limit, "<= 0.25");
  EXPECT_THAT(refusal->message, HasSubstr("limit of temperature"));
  EXPECT_FALSE(Apply(applies));
  EXPECT_EQ(p.dynamic_temperature().range(), 0.25f);
  EXPECT_EQ(effect_.applied().ShortDebugString(), "dynamic_temperature { range: 0.25 }");
  // The temperature is moved first, and leaves no range at the bound.
  p.set_temperature(5);
  EXPECT_FALSE(Apply(applies));
  EXPECT_EQ(effect_.applied().ShortDebugString(), "temperature: 1 dynamic_temperature { range: 0 }");
  // Below 0 there is nothing: without a least temperature the highest one alone counts.
  p.set_temperature(0.6f);
  p.mutable_dynamic_temperature()->set_range(0.9f);
  EXPECT_FALSE(Apply(R"("limits": [{"field": "temperature", "max": 1.5}])"));
  EXPECT_TRUE(Apply(R"("limits": [{"field": "temperature", "min": 0.5}])"));
}

TEST_F(PolicyFile, PhaseAndRangePassNoLimitOfTemperatureTogether) {
  const std::string rules = R"("limits": [{"field": "temperature", "max": 1, "violation": "VIOLATION_APPLY"}])";
  v1::SamplingParameters& p = *open_.mutable_parameters();
  p.set_temperature(0.5f);
  p.mutable_dynamic_temperature()->set_range(0.5f);
  v1::SamplingParameters& within = *p.add_phases()->mutable_parameters();
  EXPECT_FALSE(Apply(rules));
  within.set_temperature(0.75f);
  auto refusal = Apply(rules);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->field, "open.parameters.phases[0].parameters.temperature");
  within.mutable_dynamic_temperature()->set_range(0.25f);
  EXPECT_FALSE(Apply(rules));
  within.clear_temperature();
  within.mutable_dynamic_temperature()->set_range(0.75f);
  refusal = Apply(rules);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->field, "open.parameters.phases[0].parameters.dynamic_temperature.range");
}

TEST_F(PolicyFile, DefaultThatPassesALimitByAnotherFieldIsNamed) {
  ExpectError(ParseRules(R"("defaults": {"minKeep": 9}, "limits": [{"field": "top_k", "max": 5}])"),
              "defaults.min_keep");
  ExpectError(ParseRules(R"("defaults": {"temperature": 0.75, "dynamicTemperature": {"range": 0.5}},
                            "limits": [{"field": "temperature", "max": 1, "violation": "VIOLATION_APPLY"}])"),
              "defaults: one, or the least min_keep, passes a limit of another field");
}

TEST_F(PolicyFile, LeastMinKeepBeyondTheLimitOfAnotherFilterIsNamed) {
  ExpectError(ParseRules(R"("limits": [{"field": "top_k", "max": 3}, {"field": "min_keep", "min": 5}])"),
              "defaults.min_keep");
  ExpectError(ParseRules(R"("limits": [{"field": "top_k", "max": 3, "violation": "VIOLATION_APPLY"},
                                       {"field": "min_keep", "min": 5}])"),
              "defaults: one, or the least min_keep, passes a limit of another field");
}

// The scope is the sequence's. A phase that sets a penalty leaves it as it is.
TEST_F(PolicyFile, LimitOfTheWindowIsNoneOfPhases) {
  v1::SamplingParameters& p = *open_.mutable_parameters();
  p.mutable_penalty_scope()->set_window(32);
  p.set_presence_penalty(1);
  p.add_phases()->add_end(1);
  p.mutable_phases(0)->mutable_parameters()->set_presence_penalty(0.5f);
  EXPECT_FALSE(Apply(R"("limits": [{"field": "penalty_scope.window", "max": 64}])"));
}

// A phase can set no field that decides the noise.
TEST_F(PolicyFile, PhaseHasNoWatermark) { EXPECT_FALSE(FindParameter("watermark")->in_phases); }

TEST_F(PolicyFile, NewSequenceTakesFirstKey) {
  EXPECT_FALSE(Apply(R"("watermark": {"keys": "keys", "skipRepeatedContexts": true})"));
  EXPECT_EQ(open_.watermark_key_id(), "new");
  EXPECT_EQ(effect_.watermark_key_id(), "new");
  EXPECT_EQ(open_.parameters().watermark().ShortDebugString(), "key: 11 context_width: 5 skip_repeated_contexts: true");
  EXPECT_FALSE(effect_.has_applied());
}

TEST_F(PolicyFile, NamedKeyStaysInUse) {
  open_.set_watermark_key_id("old");
  EXPECT_FALSE(Apply(R"("watermark": {"keys": "keys"})"));
  EXPECT_EQ(open_.parameters().watermark().key(), 7u);
  open_.clear_parameters();
  open_.set_watermark_key_id("gone");
  const auto refusal = Apply(R"("watermark": {"keys": "keys"})");
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->field, "open.watermark_key_id");
  EXPECT_EQ(refusal->limit, "new, old");
}

TEST_F(PolicyFile, OwnWatermarkIsRefused) {
  open_.mutable_parameters()->mutable_watermark()->set_key(1);
  const auto refusal = Apply(R"("watermark": {"keys": "keys"})");
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->field, "open.parameters.watermark");
  EXPECT_FALSE(Apply(R"("receipts": true)"));  // a policy without a watermark leaves it alone
}

TEST_F(PolicyFile, KeyWithoutWatermarkIsRefused) {
  open_.set_watermark_key_id("new");
  v1::PolicyEffect effect;
  const auto refusal =
      ApplyPolicy(nullptr, "open", open_.mutable_parameters(), open_.mutable_watermark_key_id(), &effect);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->field, "open.watermark_key_id");
}

}  // namespace
}  // namespace sortition::service::policy_test
