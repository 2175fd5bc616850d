// One attack of each kind, for a second, and resets on every listener: honest clients are served, memory is bounded.
// Each bound of scenarios is judged.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/attacks/trial.h"
#include "tests/server/server_process.h"

namespace sortition::attacks::attacks_test {
namespace {

struct Case {
  std::string_view attack;
  Wire wire;
  bool is_ended;  // otherwise it may also be paced
};

class AttacksTest : public ::testing::TestWithParam<Case> {};

// `./dev attacks` judges times. Here other tests have the processors: an attacker that yields to them would get none,
// and only an answer that takes seconds is a finding.
TEST_P(AttacksTest, OthersAreServedMemoryIsBounded) {
  constexpr absl::Duration kMostTestSilence = absl::Seconds(5);
  const auto attack = std::ranges::find(Attacks(), GetParam().attack, &Attack::name);
  ASSERT_NE(attack, Attacks().end());
  TrialOptions options;
  options.length = absl::Milliseconds(800);
  options.quiet = absl::Milliseconds(200);
  options.turns = 1;
  options.after = absl::Milliseconds(300);
  options.idle = false;
  const TrialResult result = attacks::Run(*attack, GetParam().wire, options);
  EXPECT_FALSE(result.died);
  EXPECT_GT(result.sent.bytes, 0u);
  if (GetParam().is_ended) {
    EXPECT_GT(result.ended, 0) << "sortition_connections_ended_total";
  }
  if (server::UnderSanitizer()) return;
  EXPECT_LT(result.memory_peak, result.memory_before + kMostGrowth);
  EXPECT_LT(result.memory_after, result.memory_before + kMostKept);
  EXPECT_LT(result.silence, kMostTestSilence);
  EXPECT_LT(result.health_silence, kMostTestSilence);
}

constexpr Case kCases[] = {
    {"resets", Wire::kTcp, false},        {"resets", Wire::kTls, false},       {"resets", Wire::kUnix, false},
    {"resets", Wire::kHealth, false},     {"continuation", Wire::kTcp, true},  {"settings", Wire::kTcp, true},
    {"window_update", Wire::kTcp, false}, {"header_lists", Wire::kTcp, false}, {"empty_data", Wire::kTcp, true},
    {"open_streams", Wire::kTls, false},
};

INSTANTIATE_TEST_SUITE_P(All, AttacksTest, ::testing::ValuesIn(kCases), [](const auto& info) {
  return absl::StrCat(std::string(info.param.attack), "_", std::string(WireName(info.param.wire)));
});

class ScenariosTest : public ::testing::TestWithParam<std::string_view> {};

TEST_P(ScenariosTest, HonestStreamsGoOn) {
  const Scenario* scenario = nullptr;
  for (const auto& scenarios : {WorkerScenarios(), SlotScenarios()}) {
    for (const Scenario& each : scenarios) {
      if (each.name == GetParam()) scenario = &each;
    }
  }
  ASSERT_NE(scenario, nullptr);
  TrialOptions options;
  options.length = absl::Milliseconds(800);
  options.quiet = absl::Milliseconds(200);
  options.after = absl::Milliseconds(300);
  const TrialResult result = RunScenario(*scenario, options);
  EXPECT_FALSE(result.died);
  EXPECT_FALSE(result.lost);
  EXPECT_GT(result.traffic.sent, 0u);
  EXPECT_EQ(result.traffic.refusal, "");
}

constexpr std::string_view kShortScenarios[] = {"ngram1_opens", "health_watches", "unfinished_checks"};

INSTANTIATE_TEST_SUITE_P(All, ScenariosTest, ::testing::ValuesIn(kShortScenarios),
                         [](const auto& info) { return std::string(info.param); });

TEST(ScenarioBoundsTest, EachMissedBoundIsNamed) {
  constexpr absl::Duration kLong = absl::Seconds(10);
  const auto missed = [](const auto& change) {
    TrialResult result;
    change(&result);
    JudgeScenario(&result);
    return absl::StrJoin(result.missed, ", ");
  };
  EXPECT_EQ(missed([](TrialResult*) {}), "");
  EXPECT_EQ(missed([](TrialResult* result) { result->died = true; }), "the process ended");
  EXPECT_EQ(missed([](TrialResult* result) { result->lost = true; }), "an honest stream was ended");
  EXPECT_EQ(missed([](TrialResult* result) { result->memory_peak = kMostScenarioGrowth + 1; }), "memory");
  EXPECT_EQ(missed([](TrialResult* result) { result->memory_after = kMostKept + 1; }), "memory kept");
  EXPECT_EQ(missed([&](TrialResult* result) { result->p99 = kLong; }), "p99");
  EXPECT_EQ(missed([&](TrialResult* result) { result->health_silence = kLong; }), "health");
  EXPECT_EQ(missed([&](TrialResult* result) { result->newcomer_silence = kLong; }), "newcomer");
  EXPECT_EQ(missed([&](TrialResult* result) { result->stop = kLong; }), "stop");
  const auto answered = [&](uint64_t bytes) {
    return missed([&](TrialResult* result) { result->traffic = {.sent = 1, .answered = bytes, .asked = 7}; });
  };
  EXPECT_EQ(answered(kMostAnswer + 7), "");
  EXPECT_EQ(answered(kMostAnswer + 8), "answers");
}

}  // namespace
}  // namespace sortition::attacks::attacks_test
