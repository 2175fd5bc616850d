// When to spin for a message, and when to sleep.
#include "gtest/gtest.h"
#include "service/memory/ring.h"

namespace sortition::service::spin_choice_test {
namespace {

constexpr absl::Duration kMost = absl::Microseconds(200);

TEST(SpinChoiceTest, SpinsForShortWaitsSleepsForLong) {
  SpinChoice choice(kMost);
  EXPECT_EQ(choice.Next(), kMost) << "nothing is known";
  choice.OnMessage(absl::Milliseconds(20));
  EXPECT_EQ(choice.Next(), absl::ZeroDuration());
  choice.OnMessage(absl::Microseconds(100));
  EXPECT_EQ(choice.Next(), kMost);
}

TEST(SpinChoiceTest, WakeCostDoesNotPreventSpinning) {
  SpinChoice choice(kMost);
  choice.OnMessage(kMost + absl::Microseconds(40));
  EXPECT_EQ(choice.Next(), kMost);
  choice.OnMessage(kMost + absl::Microseconds(60));
  EXPECT_EQ(choice.Next(), absl::ZeroDuration());
}

TEST(SpinChoiceTest, NeverSpinsIfOff) {
  SpinChoice choice(absl::ZeroDuration());
  EXPECT_EQ(choice.Next(), absl::ZeroDuration());
  choice.OnMessage(absl::ZeroDuration());
  EXPECT_EQ(choice.Next(), absl::ZeroDuration());
}

}  // namespace
}  // namespace sortition::service::spin_choice_test
