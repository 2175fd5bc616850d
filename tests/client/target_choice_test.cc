// The choice of the next target, and the wait after a failed round.
#include "client/cpp/target_choice.h"

#include "gtest/gtest.h"

namespace sortition::client::target_choice_test {
namespace {

constexpr Backoff kBackoff{absl::Milliseconds(100), absl::Seconds(1)};
const absl::Time kNow = absl::UnixEpoch();

TEST(TargetChoiceTest, TargetsAreTriedInTurnWithoutWaiting) {
  TargetChoice choice(3, false, kBackoff, 1);
  EXPECT_EQ(choice.Next(kNow, true), 0);
  choice.Ended(false, kNow);
  EXPECT_EQ(choice.Next(kNow, true), 1);
  choice.Ended(false, kNow);
  EXPECT_EQ(choice.Next(kNow, true), 2);
  EXPECT_FALSE(choice.exhausted());
}

TEST(TargetChoiceTest, FailedRoundsWaitLongerUpToBound) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    TargetChoice choice(2, false, kBackoff, seed);
    absl::Time now = kNow;
    for (const int full : {100, 200, 400, 800, 1000, 1000}) {
      choice.Ended(false, now);
      choice.Ended(false, now);
      EXPECT_TRUE(choice.exhausted());
      EXPECT_EQ(choice.hopeless(), full > 100) << "after the second round";
      EXPECT_FALSE(choice.Next(now, true).has_value());
      const absl::Duration wait = choice.not_before() - now;
      EXPECT_GE(wait, absl::Milliseconds(full) / 2);
      EXPECT_LE(wait, absl::Milliseconds(full));
      now = choice.not_before();
      EXPECT_EQ(choice.Next(now, true), 0);
    }
  }
}

TEST(TargetChoiceTest, ReturnedServerIsTriedWithinASecond) {
  TargetChoice choice(1, false, Backoff(), 1);
  for (int round = 0; round < 100; ++round) {
    choice.Ended(false, kNow);
    EXPECT_LT(choice.not_before() - kNow, absl::Seconds(1));
  }
}

TEST(TargetChoiceTest, WaitsOfDifferentWorkersDiffer) {
  TargetChoice one(1, false, kBackoff, 1);
  TargetChoice two(1, false, kBackoff, 2);
  EXPECT_NE(one.Wait(1), two.Wait(1));
}

TEST(TargetChoiceTest, UsefulStreamRestartsTheRound) {
  TargetChoice choice(2, false, kBackoff, 1);
  choice.Ended(false, kNow);
  choice.Useful();
  choice.Ended(true, kNow);
  EXPECT_EQ(choice.Next(kNow, true), 0);
  choice.Ended(false, kNow);
  EXPECT_FALSE(choice.exhausted());
}

TEST(TargetChoiceTest, FallbackOnlyAfterFailedRoundIfWanted) {
  TargetChoice choice(1, true, kBackoff, 1);
  EXPECT_EQ(choice.Next(kNow, true), 0);
  choice.Ended(false, kNow);
  const auto next = choice.Next(kNow, true);
  ASSERT_TRUE(next.has_value());
  EXPECT_TRUE(choice.IsFallback(*next));
  EXPECT_FALSE(choice.Next(kNow, false).has_value());
  EXPECT_EQ(choice.Next(choice.not_before(), false), 0);
}

TEST(TargetChoiceTest, NoTargetsLeavesFallbackOnly) {
  const TargetChoice choice(0, true, kBackoff, 1);
  const auto next = choice.Next(kNow, true);
  ASSERT_TRUE(next.has_value());
  EXPECT_TRUE(choice.IsFallback(*next));
  EXPECT_FALSE(choice.Next(kNow, false).has_value());
}

}  // namespace
}  // namespace sortition::client::target_choice_test
