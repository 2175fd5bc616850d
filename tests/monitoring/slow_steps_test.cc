// Slow steps: the parts of their time, the minutes that keep them, and names that clients choose.
#include "service/log/slow_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "service/log/json_text.h"
#include "tests/support/fake_clock.h"

namespace sortition::server::slow_steps_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class SlowStepsTest : public ::testing::Test {
 protected:
  absl::Time At(int milliseconds) const { return start_ + absl::Milliseconds(milliseconds); }
  // A step that waited `queue` and ran on a device for `device`, in milliseconds.
  void Add(int queue, int device, std::string_view session = "w", absl::Duration unread = {}) {
    const absl::Time now = clock_.Now();
    const absl::Time started = now - absl::Milliseconds(device);
    const std::vector<service::BatchRun> runs = {{"cpu0", 1, started - absl::Milliseconds(queue), started, now}};
    service::NotedStep step;
    step.slow = true;
    step.worker_session = session;
    step.batch_id = ~uint64_t{0};
    step.rows = 3;
    step.arrived = step.ready = started - absl::Milliseconds(queue);
    step.answered = now;
    step.unread = unread;
    step.runs = runs;
    slow_.Add(step);
  }

  testing::FakeClock clock_;
  const absl::Time start_ = clock_.Now();
  service::Hiccups hiccups_;
  SlowSteps slow_{absl::Milliseconds(65), &clock_, &hiccups_};
};

TEST_F(SlowStepsTest, PartsOfOverlappingRunsAddUp) {
  const std::vector<service::BatchRun> runs = {
      {"cpu0", 1, At(0), At(10), At(30)}, {"cpu1", 1, At(5), At(20), At(50)}, {"cpu0", 1, At(60), At(70), At(90)}};
  service::NotedStep step;
  step.arrived = At(-40);
  step.ready = At(0);
  step.answered = At(100);
  step.runs = runs;
  step.unread = absl::Milliseconds(7);
  const StepParts parts = PartsOf(step);
  EXPECT_EQ(parts.logits, absl::Milliseconds(40));
  EXPECT_EQ(parts.device, absl::Milliseconds(60)) << "10 to 50 and 70 to 90";
  EXPECT_EQ(parts.queue, absl::Milliseconds(20)) << "0 to 10 and 60 to 70";
  EXPECT_EQ(parts.answer, absl::Milliseconds(20)) << "50 to 60 and 90 to 100";
  EXPECT_EQ(parts.wire, absl::Milliseconds(7));
}

TEST_F(SlowStepsTest, LargestPartIsTheCause) {
  Add(80, 10);
  EXPECT_THAT(slow_.Json(), HasSubstr("{\"queue\":1,\"device\":0,\"answer\":0,\"wire\":0}"));
  Add(10, 80);
  Add(10, 20, "w", absl::Milliseconds(90));
  EXPECT_THAT(slow_.Json(), HasSubstr("{\"queue\":1,\"device\":1,\"answer\":0,\"wire\":1}"));
}

TEST_F(SlowStepsTest, HiccupsInAStepAreTheMachines) {
  Add(60, 30);
  hiccups_.Add(At(-70), At(-40));
  hiccups_.Add(At(-10), At(50));
  EXPECT_THAT(slow_.Json(), HasSubstr(",\"machine\":0.04}")) << "30 ms, and 10 of the other's 60";
}

TEST_F(SlowStepsTest, WithoutAControlMachinesPartIsNull) {
  SlowSteps slow(absl::Milliseconds(65), &clock_, nullptr);
  service::NotedStep step;
  step.arrived = step.ready = step.answered = clock_.Now();
  slow.Add(step);
  EXPECT_THAT(slow.Json(), HasSubstr(",\"machine\":null}"));
}

TEST_F(SlowStepsTest, SlowestOfAMinuteStayAndAllCount) {
  for (int queue = 1; queue <= 1000; ++queue) Add(queue, 0, "w" + std::to_string(queue));
  const std::string json = slow_.Json();
  EXPECT_THAT(json, HasSubstr("{\"queue\":1000,"));
  for (int queue = 993; queue <= 1000; ++queue) EXPECT_THAT(json, HasSubstr("\"w" + std::to_string(queue) + "\""));
  EXPECT_THAT(json, Not(HasSubstr("\"w992\"")));
}

TEST_F(SlowStepsTest, TenMinutesLaterNothingIsLeft) {
  Add(80, 10);
  clock_.Advance(absl::Minutes(9));
  EXPECT_THAT(slow_.Json(), HasSubstr("{\"queue\":1,"));
  clock_.Advance(absl::Minutes(1));
  EXPECT_THAT(slow_.Json(), HasSubstr("{\"queue\":0,"));
  EXPECT_THAT(slow_.Json(), HasSubstr("\"steps\":[]"));
}

TEST_F(SlowStepsTest, TracedStepHasItsTraceId) {
  service::NotedStep step;
  step.traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  step.arrived = step.ready = step.answered = clock_.Now();
  slow_.Add(step);
  EXPECT_THAT(slow_.Json(), HasSubstr("\"trace_id\":\"\"")) << "not traced";
  step.traced = true;
  slow_.Add(step);
  EXPECT_THAT(slow_.Json(), HasSubstr("\"trace_id\":\"4bf92f3577b34da6a3ce929d0e0e4736\""));
}

TEST_F(SlowStepsTest, HostileNamesAreTextsOfBoundedLength) {
  Add(80, 10, "</script>\"\\\n\x1b[31m\xe2\x80\xae\xc2\x9b");
  EXPECT_THAT(slow_.Json(), HasSubstr("\"</script>\\\"\\\\\\u000a\\u001b[31m\\u202e\\u009b\""));
  Add(90, 10, std::string(100'000, 'x'));
  EXPECT_LT(slow_.Json().size(), 2000u);
}

TEST(JsonTextTest, WhatSteersIsEscapedAndTheRestIsNot) {
  const auto json = [](std::string_view text) {
    std::string out;
    AppendJsonText(text, &out);
    return out;
  };
  EXPECT_EQ(json("a\x7f\xc2\x85"), "\"a\\u007f\\u0085\"");
  EXPECT_EQ(json("\xe2\x80\x8e\xe2\x80\xa8\xe2\x81\xa6\xe2\x81\xa9\xd8\x9c"),
            "\"\\u200e\\u2028\\u2066\\u2069\\u061c\"");
  EXPECT_EQ(json("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \xc2\xa0"),
            "\"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \xc2\xa0\"");
  EXPECT_EQ(json("\xe2\x80"), "\"\xe2\x80\"") << "cut";
}

}  // namespace
}  // namespace sortition::server::slow_steps_test
