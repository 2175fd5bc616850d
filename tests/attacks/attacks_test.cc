// One attack of each kind, for a second, and resets on every listener: honest clients are served, memory is bounded.
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

}  // namespace
}  // namespace sortition::attacks::attacks_test
