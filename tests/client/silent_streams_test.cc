// Servers that keep their connection and send nothing: the client leaves them, and no token is lost or drawn twice.
#include "gtest/gtest.h"
#include "sortition/in_process.h"
#include "tests/client/state_harness.h"

namespace sortition::testing::silent_streams_test {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(10);

class SilentStreamTest : public ::testing::Test {
 protected:
  // Submits a step without an answer. Takes and releases the messages sent for it.
  void StepInVain(StateHarness* harness, const std::shared_ptr<client::SequenceRecord>& record,
                  absl::Duration timeout = kTimeout) {
    const auto results = harness->Submit({record}, timeout);
    harness->stream(0).sent.clear();
    harness->MoveBy(timeout);
    ASSERT_EQ(results->times, 1);
    EXPECT_EQ(ErrorOfRow(results->rows[0])->reason, v1::DEADLINE_PASSED);
  }
};

TEST_F(SilentStreamTest, SecondTimeoutMovesTextToNextStream) {
  StateHarness harness(HarnessOptions({"a", "b"}));
  harness.Welcome(harness.stream(0));
  const auto record = harness.OpenOn(harness.stream(0), "r", true);
  const auto first = harness.Submit({record});
  harness.AnswerRow(harness.stream(0), harness.TakeStep(harness.stream(0)), 0, 5);

  const auto unanswered = harness.Submit({record}, kTimeout);
  const v1::Step step = harness.TakeStep(harness.stream(0));
  harness.MoveBy(kTimeout);
  EXPECT_FALSE(harness.stream(0).cancelled) << "the answer may only be late";
  StepInVain(&harness, record);
  EXPECT_TRUE(harness.stream(0).cancelled);
  ASSERT_EQ(harness.connector.streams.size(), 2);
  EXPECT_EQ(harness.stream(1).target, 1);
  EXPECT_NE(harness.state.links().last_failure().find("a: DEADLINE_EXCEEDED: nothing came for 20s"), std::string::npos)
      << harness.state.links().last_failure();

  harness.Welcome(harness.stream(1));
  harness.AnswerRow(harness.stream(0), step, 0, 6);  // the server answers late
  EXPECT_EQ(StateHarness::Position(*record), 3);
  const auto next = harness.Submit({record});
  v1::OpenSequence open = harness.TakeOpen(harness.stream(1));
  EXPECT_FALSE(open.has_history()) << "another server may have it";
  harness.RefuseOpen(harness.stream(1), open, StateHarness::HistoryRequired());
  open = harness.TakeOpen(harness.stream(1));
  EXPECT_EQ(std::vector<uint32_t>(open.history().tokens().begin(), open.history().tokens().end()),
            (std::vector<uint32_t>{1, 2, 5}));
  harness.AcceptOpen(harness.stream(1), open, true);
  const v1::Step again = harness.TakeStep(harness.stream(1));
  EXPECT_EQ(again.rows(0).position(), step.rows(0).position());
  EXPECT_EQ(again.rows(0).history_hash(), step.rows(0).history_hash());
  harness.AnswerRow(harness.stream(1), again, 0, 6);
  EXPECT_EQ(DrawOfRow(next->rows[0])->token(), 6);
  EXPECT_EQ(StateHarness::Position(*record), 4);
}

TEST_F(SilentStreamTest, OpenTimeoutsCount) {
  StateHarness harness(HarnessOptions({"a", "b"}));
  harness.Welcome(harness.stream(0));
  for (const char* id : {"one", "two"}) {
    client::SequenceOptions sequence;
    sequence.request_id = id;
    const auto opened = harness.Open(sequence);
    EXPECT_FALSE(harness.stream(0).cancelled);
    harness.MoveBy(harness.options.default_timeout);
    EXPECT_TRUE(absl::IsDeadlineExceeded(*opened.status)) << *opened.status;
  }
  EXPECT_TRUE(harness.stream(0).cancelled);
}

TEST_F(SilentStreamTest, LateServerIsKept) {
  StateHarness harness(HarnessOptions({"a", "b"}));
  harness.Welcome(harness.stream(0));
  const auto record = harness.OpenOn(harness.stream(0), "r", false);
  for (int i = 0; i < 5; ++i) {
    const auto results = harness.Submit({record}, kTimeout);
    if (i > 0) {
      const v1::OpenSequence open = harness.TakeOpen(harness.stream(0));
      harness.MoveBy(kTimeout / 2);
      harness.AcceptOpen(harness.stream(0), open, false);
    }
    const v1::Step step = harness.TakeStep(harness.stream(0));
    harness.MoveTo(harness.state.next_event(harness.now));
    EXPECT_EQ(results->times, 1);
    harness.AnswerRow(harness.stream(0), step, 0, 5);
  }
  EXPECT_FALSE(harness.stream(0).cancelled);
}

TEST_F(SilentStreamTest, ConcurrentTimeoutsCountOnce) {
  StateHarness harness(HarnessOptions({"a", "b"}));
  harness.Welcome(harness.stream(0));
  std::vector<std::shared_ptr<client::SequenceRecord>> records;
  for (const char* id : {"one", "two", "three"}) records.push_back(harness.OpenOn(harness.stream(0), id, false));
  for (const auto& record : records) {
    harness.Submit({record}, kTimeout);
    harness.TakeStep(harness.stream(0));
    harness.MoveBy(absl::Seconds(1));
  }
  harness.MoveBy(kTimeout);
  EXPECT_FALSE(harness.stream(0).cancelled);
  StepInVain(&harness, records[0]);
  EXPECT_TRUE(harness.stream(0).cancelled);
}

TEST_F(SilentStreamTest, ShortStepsWaitForConnectTimeout) {
  StateHarness harness(HarnessOptions({"a", "b"}));
  harness.Welcome(harness.stream(0));
  const auto record = harness.OpenOn(harness.stream(0), "r", false);
  harness.MoveBy(absl::Hours(1));  // nothing was sent meanwhile
  const absl::Time first = harness.now;
  while (!harness.stream(0).cancelled && harness.now < first + 2 * harness.options.retry.connect_timeout) {
    StepInVain(&harness, record, harness.options.retry.connect_timeout / 10);
  }
  EXPECT_EQ(harness.now, first + harness.options.retry.connect_timeout);
}

TEST_F(SilentStreamTest, SilentDrainingStreamIsLeft) {
  StateHarness harness(HarnessOptions({"a", "b"}));
  harness.Welcome(harness.stream(0));
  const auto record = harness.OpenOn(harness.stream(0), "r", false);
  client::SequenceOptions sequence;
  sequence.request_id = "never";
  harness.Open(sequence);
  harness.stream(0).sent.clear();
  harness.Drain(harness.stream(0));
  harness.Welcome(harness.stream(1));
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(harness.stream(0).cancelled) << "it owes an answer";
    StepInVain(&harness, record);
  }
  EXPECT_TRUE(harness.stream(0).cancelled);
  EXPECT_TRUE(harness.state.usable());
}

TEST_F(SilentStreamTest, FallbackTakesOverFromOnlyTarget) {
  client::ClientOptions options = HarnessOptions();
  options.in_process = client::InProcessEngine();
  StateHarness harness(options);
  harness.Welcome(harness.stream(0));
  const auto record = harness.OpenOn(harness.stream(0), "r", false);
  for (int i = 0; i < 2; ++i) StepInVain(&harness, record);
  harness.Welcome(harness.stream(1));
  EXPECT_TRUE(harness.state.links().in_process());
}

}  // namespace
}  // namespace sortition::testing::silent_streams_test
