// Quarantine, back-off and return.
#include "service/route/health.h"

#include <gtest/gtest.h>

#include "tests/route/fixtures.h"

namespace sortition::service::health_test {
namespace {

TEST(DeviceHealth, SelfTestAfterDoublingBackoffRestores) {
  DeviceHealth health;
  EXPECT_TRUE(health.serves());
  absl::Time now = kStart;
  absl::Duration backoff = DeviceHealth::kFirstBackoff;
  for (int failure = 0; failure < 12; ++failure) {
    health.Quarantine("broken", now);
    EXPECT_FALSE(health.serves());
    EXPECT_EQ(health.reason(), "broken");
    EXPECT_FALSE(health.IsDue(now + backoff - absl::Nanoseconds(1)));
    now += backoff;
    EXPECT_TRUE(health.IsDue(now));
    health.SelfTestStarted();
    EXPECT_FALSE(health.IsDue(now)) << "one self_test at a time";
    EXPECT_FALSE(health.serves());
    health.Passed("right", now);
    EXPECT_TRUE(health.serves());
    backoff = std::min(2 * backoff, DeviceHealth::kLongestBackoff);
  }
  now += DeviceHealth::kForgiven;
  health.Quarantine("broken", now);
  EXPECT_TRUE(health.IsDue(now + DeviceHealth::kFirstBackoff)) << "long service is forgiving";
}

TEST(DeviceHealth, SelfTestWithoutMemoryIsRetriedSoon) {
  DeviceHealth health;
  absl::Time now = kStart;
  for (int failure = 0; failure < 12; ++failure) {
    health.Quarantine("no memory", now, true);
    now += DeviceHealth::kMemoryBackoff;
    EXPECT_TRUE(health.IsDue(now));
    health.SelfTestStarted();
  }
  health.Quarantine("broken", now);
  EXPECT_TRUE(health.IsDue(now + DeviceHealth::kFirstBackoff)) << "none of these was a failure";
}

}  // namespace
}  // namespace sortition::service::health_test
