// Rows: each gets one result, also if messages are lost, repeated, refused or late.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "service/text/history/history_hash.h"
#include "tests/client/state_harness.h"

namespace sortition::testing::rows_test {
namespace {

using ::testing::ElementsAre;

class RowsTest : public ::testing::Test {
 protected:
  RowsTest() { harness.Welcome(harness.stream(0)); }

  // Returns the next stream, which was welcomed and got the open of `record` without its history.
  v1::OpenSequence Reopened(const client::SequenceRecord& record) {
    harness.Welcome(harness.last_stream());
    const v1::OpenSequence open = harness.TakeOpen(harness.last_stream());
    EXPECT_EQ(open.request_id(), record.options.request_id);
    EXPECT_FALSE(open.has_history());
    EXPECT_EQ(open.seed(), 77) << "the seed in force, not a new one";
    return open;
  }

  StateHarness harness{HarnessOptions()};
};

TEST_F(RowsTest, StatelessRowsCarryNoHistory) {
  const auto record = harness.OpenOn(harness.stream(0), "r", false);
  const auto results = harness.Submit({record});
  const v1::Step step = harness.TakeStep(harness.stream(0));
  EXPECT_EQ(step.rows(0).position(), 2);
  EXPECT_EQ(step.rows(0).step_id(), 1);
  EXPECT_FALSE(step.rows(0).has_history_hash());
  harness.AnswerRow(harness.stream(0), step, 0, 5);
  ASSERT_EQ(results->times, 1);
  EXPECT_EQ(DrawOfRow(results->rows[0])->token(), 5);
  EXPECT_EQ(StateHarness::Position(*record), 3);
}

uint64_t HashOf(const client::SequenceRecord& record, const std::vector<uint32_t>& tokens) {
  uint64_t chain = service::kEmptyHash;
  for (uint32_t token : tokens) chain = service::ExtendTokenHash(chain, token);
  return service::HistoryHash(chain, static_cast<uint32_t>(record.options.prompt.size()), record.Digest(77));
}

TEST_F(RowsTest, StatefulRowsCarryTheHash) {
  const auto record = harness.OpenOn(harness.stream(0), "r", true);
  std::vector<uint32_t> tokens = {1, 2};
  for (uint32_t token : {5, 6, 7}) {
    const auto results = harness.Submit({record});
    const v1::Step step = harness.TakeStep(harness.stream(0));
    EXPECT_EQ(step.rows(0).history_hash(), HashOf(*record, tokens));
    harness.AnswerRow(harness.stream(0), step, 0, token);
    tokens.push_back(token);
  }
  EXPECT_EQ(StateHarness::Position(*record), 5);
}

TEST_F(RowsTest, LostAnswerIsRequestedUnderSameStepId) {
  const auto record = harness.OpenOn(harness.stream(0), "r", true);
  const auto results = harness.Submit({record});
  const v1::Step lost = harness.TakeStep(harness.stream(0));
  harness.End(harness.stream(0));
  harness.AcceptOpen(harness.stream(1), Reopened(*record), true, 3, 99);
  const v1::Step again = harness.TakeStep(harness.stream(1));
  EXPECT_NE(again.batch_id(), lost.batch_id());
  EXPECT_EQ(again.rows(0).SerializeAsString(), lost.rows(0).SerializeAsString());
  harness.AnswerRow(harness.stream(1), again, 0, 5);
  EXPECT_EQ(results->times, 1);
  EXPECT_EQ(StateHarness::Position(*record), 3);
}

TEST_F(RowsTest, RepeatedAnswersCountOnce) {
  const auto one = harness.OpenOn(harness.stream(0), "one", false);
  const auto two = harness.OpenOn(harness.stream(0), "two", false);
  const auto results = harness.Submit({one, two});
  const v1::Step step = harness.TakeStep(harness.stream(0));
  harness.AnswerRow(harness.stream(0), step, 0, 5);
  harness.AnswerRow(harness.stream(0), step, 0, 6);
  EXPECT_EQ(results->times, 0);
  harness.AnswerRow(harness.stream(0), step, 1, 7);
  harness.AnswerRow(harness.stream(0), step, 1, 7);
  ASSERT_EQ(results->times, 1);
  EXPECT_EQ(DrawOfRow(results->rows[0])->token(), 5);
  EXPECT_EQ(DrawOfRow(results->rows[1])->token(), 7);
  EXPECT_EQ(StateHarness::Position(*one), 3);
  EXPECT_EQ(StateHarness::Position(*two), 3);
}

TEST_F(RowsTest, LateAnswerAfterNewerStepsIsIgnored) {
  const auto record = harness.OpenOn(harness.stream(0), "r", true);
  const auto first = harness.Submit({record});
  const v1::Step old = harness.TakeStep(harness.stream(0));
  harness.AnswerRow(harness.stream(0), old, 0, 5);
  const auto second = harness.Submit({record});
  const v1::Step step = harness.TakeStep(harness.stream(0));
  harness.AnswerRow(harness.stream(0), old, 0, 5);
  EXPECT_EQ(second->times, 0);
  harness.AnswerRow(harness.stream(0), step, 0, 6);
  EXPECT_EQ(second->times, 1);
  EXPECT_EQ(StateHarness::Position(*record), 4);
}

TEST_F(RowsTest, HistoryRequiredReplaysAndResendsBytes) {
  const auto record = harness.OpenOn(harness.stream(0), "r", true);
  harness.Submit({record});
  harness.AnswerRow(harness.stream(0), harness.TakeStep(harness.stream(0)), 0, 5);
  {
    absl::MutexLock lock(&record->mutex);
    ASSERT_TRUE(record->history.ReplaceLast(6).ok());
  }
  const auto results = harness.Submit({record});
  const v1::Step refused = harness.TakeStep(harness.stream(0));
  EXPECT_TRUE(refused.rows(0).has_truncate_to());
  harness.RefuseRow(harness.stream(0), refused, 0, StateHarness::HistoryRequired());
  const v1::OpenSequence replay = harness.TakeOpen(harness.stream(0));
  EXPECT_THAT(replay.history().tokens(), ElementsAre(1, 2, 6));
  EXPECT_EQ(replay.history().prompt_length(), 2);
  harness.AcceptOpen(harness.stream(0), replay, true);

  const SentMessage again = harness.Take(harness.stream(0), v1::StreamRequest::kStep);
  const v1::StepRow& row = again.message.step().rows(0);
  EXPECT_EQ(row.step_id(), refused.rows(0).step_id());
  EXPECT_EQ(row.history_hash(), StateHarness::HashOf(replay, {1, 2, 6}));
  EXPECT_FALSE(row.has_truncate_to()) << "the replay holds the rewrite already";
  EXPECT_EQ(row.append_tokens_size(), 0);
  EXPECT_EQ(again.payloads[0].segments[0].data, reinterpret_cast<const std::byte*>(harness.logits));
  harness.AnswerRow(harness.stream(0), again.message.step(), 0, 7);
  EXPECT_EQ(StateHarness::Position(*record), 4);
}

TEST_F(RowsTest, RewriteDuringReplayReplaysAgain) {
  const auto record = harness.OpenOn(harness.stream(0), "r", true);
  const auto hurried = harness.Submit({record}, absl::Seconds(1));
  harness.RefuseRow(harness.stream(0), harness.TakeStep(harness.stream(0)), 0, StateHarness::HistoryRequired());
  const v1::OpenSequence outdated = harness.TakeOpen(harness.stream(0));
  harness.MoveBy(absl::Seconds(1));
  ASSERT_EQ(hurried->times, 1);
  {
    absl::MutexLock lock(&record->mutex);
    ASSERT_TRUE(record->history.ReplaceLast(7).ok());
  }
  const auto results = harness.Submit({record});
  harness.AcceptOpen(harness.stream(0), outdated, true);
  const v1::OpenSequence replay = harness.TakeOpen(harness.stream(0));
  EXPECT_THAT(replay.history().tokens(), ElementsAre(1, 7));
  harness.AcceptOpen(harness.stream(0), replay, true);
  EXPECT_EQ(harness.TakeStep(harness.stream(0)).rows(0).history_hash(), StateHarness::HashOf(replay, {1, 7}));
}

TEST_F(RowsTest, StepConflictIsReplayed) {
  const auto record = harness.OpenOn(harness.stream(0), "r", true);
  const auto results = harness.Submit({record});
  const v1::Step step = harness.TakeStep(harness.stream(0));
  harness.RefuseRow(harness.stream(0), step, 0,
                    StateHarness::MakeError(absl::StatusCode::kFailedPrecondition, v1::STEP_CONFLICT));
  harness.AcceptOpen(harness.stream(0), harness.TakeOpen(harness.stream(0)), true);
  const v1::Step again = harness.TakeStep(harness.stream(0));
  EXPECT_EQ(again.rows(0).step_id(), step.rows(0).step_id());
  harness.AnswerRow(harness.stream(0), again, 0, 5);
  EXPECT_EQ(results->times, 1);
}

TEST_F(RowsTest, OpenOnNewStreamGetsHistory) {
  const auto record = harness.OpenOn(harness.stream(0), "r", true);
  harness.End(harness.stream(0));
  const auto results = harness.Submit({record});
  harness.RefuseOpen(harness.stream(1), Reopened(*record), StateHarness::HistoryRequired());
  const v1::OpenSequence replay = harness.TakeOpen(harness.stream(1));
  EXPECT_THAT(replay.history().tokens(), ElementsAre(1, 2));
  harness.AcceptOpen(harness.stream(1), replay, true);
  harness.AnswerRow(harness.stream(1), harness.TakeStep(harness.stream(1)), 0, 5);
  EXPECT_EQ(results->times, 1);
}

TEST_F(RowsTest, ReplayedRowDelaysNoNeighbour) {
  const auto one = harness.OpenOn(harness.stream(0), "one", true);
  const auto two = harness.OpenOn(harness.stream(0), "two", false);
  const auto results = harness.Submit({one, two});
  const v1::Step step = harness.TakeStep(harness.stream(0));
  harness.RefuseRow(harness.stream(0), step, 0, StateHarness::HistoryRequired());
  harness.AnswerRow(harness.stream(0), step, 1, 5);
  EXPECT_EQ(StateHarness::Position(*two), 3);
  EXPECT_EQ(results->times, 0);
  harness.AcceptOpen(harness.stream(0), harness.TakeOpen(harness.stream(0)), true);
  const v1::Step again = harness.TakeStep(harness.stream(0));
  ASSERT_EQ(again.rows_size(), 1);
  harness.AnswerRow(harness.stream(0), again, 0, 6);
  ASSERT_EQ(results->times, 1);
  EXPECT_EQ(DrawOfRow(results->rows[0])->token(), 6);
  EXPECT_EQ(DrawOfRow(results->rows[1])->token(), 5);
}

TEST_F(RowsTest, ForgetfulServerIsGivenUp) {
  const auto record = harness.OpenOn(harness.stream(0), "r", true);
  const auto results = harness.Submit({record});
  int replays = 0;
  while (results->times == 0) {
    ASSERT_LT(replays, 100);
    harness.RefuseRow(harness.stream(0), harness.TakeStep(harness.stream(0)), 0, StateHarness::HistoryRequired());
    if (results->times > 0) break;
    ++replays;
    harness.AcceptOpen(harness.stream(0), harness.TakeOpen(harness.stream(0)), true);
  }
  EXPECT_EQ(replays, 8);
  EXPECT_EQ(ErrorOfRow(results->rows[0])->reason, v1::HISTORY_REQUIRED);
}

// Replays on streams that drain before the step is sent must not count towards the step's limit.
TEST_F(RowsTest, StreamEndsAfterHistoryCountNoReplay) {
  const auto record = harness.OpenOn(harness.stream(0), "r", true);
  const auto results = harness.Submit({record}, absl::Hours(1));
  for (int i = 0; i < 20; ++i) {
    FakeStream& stream = harness.last_stream();
    harness.RefuseRow(stream, harness.TakeStep(stream), 0, StateHarness::HistoryRequired());
    ASSERT_EQ(results->times, 0);
    harness.TakeOpen(stream);
    harness.End(stream);
    if (&harness.last_stream() == &stream) harness.MoveTo(harness.state.next_event(harness.now));
    harness.Welcome(harness.last_stream());
    harness.AcceptOpen(harness.last_stream(), harness.TakeOpen(harness.last_stream()), true);
  }
  harness.AnswerRow(harness.last_stream(), harness.TakeStep(harness.last_stream()), 0, 6);
  EXPECT_EQ(results->times, 1);
}

TEST_F(RowsTest, LostHistoryUnderOverloadReplaysToDeadline) {
  const auto record = harness.OpenOn(harness.stream(0), "r", true);
  const auto results = harness.Submit({record}, absl::Hours(1));
  const v1::Error overloaded = StateHarness::MakeError(absl::StatusCode::kResourceExhausted, v1::OVERLOADED);
  for (int i = 0; i < 20; ++i) {
    harness.RefuseRow(harness.stream(0), harness.TakeStep(harness.stream(0)), 0, overloaded);
    harness.MoveBy(absl::Seconds(10));
    harness.RefuseRow(harness.stream(0), harness.TakeStep(harness.stream(0)), 0, StateHarness::HistoryRequired());
    ASSERT_EQ(results->times, 0) << i;
    harness.AcceptOpen(harness.stream(0), harness.TakeOpen(harness.stream(0)), true);
  }
  harness.AnswerRow(harness.stream(0), harness.TakeStep(harness.stream(0)), 0, 6);
  EXPECT_EQ(results->times, 1);
}

TEST_F(RowsTest, OverloadIsRetriedAfterAdvice) {
  const auto record = harness.OpenOn(harness.stream(0), "r", false);
  const auto results = harness.Submit({record});
  const v1::Step step = harness.TakeStep(harness.stream(0));
  v1::Error overloaded = StateHarness::MakeError(absl::StatusCode::kResourceExhausted, v1::OVERLOADED);
  overloaded.mutable_retry_after()->set_seconds(3);
  v1::StreamResponse response;
  response.mutable_results()->set_batch_id(step.batch_id());
  *response.mutable_results()->mutable_error() = overloaded;
  harness.Respond(harness.stream(0), response);
  EXPECT_TRUE(harness.stream(0).sent.empty());
  EXPECT_EQ(harness.state.next_event(harness.now), harness.now + absl::Seconds(3));
  harness.MoveBy(absl::Seconds(3));
  const v1::Step again = harness.TakeStep(harness.stream(0));
  EXPECT_EQ(again.rows(0).step_id(), step.rows(0).step_id());
  harness.AnswerRow(harness.stream(0), again, 0, 5);
  EXPECT_EQ(results->times, 1);
}

TEST_F(RowsTest, OverloadPastDeadlineSurfacesAtOnce) {
  const auto record = harness.OpenOn(harness.stream(0), "r", false);
  const auto results = harness.Submit({record}, absl::Seconds(2));
  v1::Error overloaded = StateHarness::MakeError(absl::StatusCode::kResourceExhausted, v1::OVERLOADED);
  overloaded.mutable_retry_after()->set_seconds(3);
  harness.RefuseRow(harness.stream(0), harness.TakeStep(harness.stream(0)), 0, overloaded);
  ASSERT_EQ(results->times, 1);
  EXPECT_EQ(ErrorOfRow(results->rows[0])->reason, v1::OVERLOADED);
  EXPECT_EQ(StateHarness::Position(*record), 2);
}

TEST_F(RowsTest, MendedRefusalsNeverSurfaceAtDeadline) {
  for (const v1::ErrorReason reason : {v1::HISTORY_REQUIRED, v1::STALE_STEP, v1::DRAINING}) {
    const auto record = harness.OpenOn(harness.stream(0), v1::ErrorReason_Name(reason), true);
    const auto results = harness.Submit({record}, absl::Seconds(1));
    harness.now += absl::Seconds(1);  // no timer has run yet
    harness.RefuseRow(harness.stream(0), harness.TakeStep(harness.stream(0)), 0,
                      StateHarness::MakeError(absl::StatusCode::kFailedPrecondition, reason));
    ASSERT_EQ(results->times, 1);
    EXPECT_EQ(ErrorOfRow(results->rows[0])->reason, v1::DEADLINE_PASSED) << v1::ErrorReason_Name(reason);
  }
}

TEST_F(RowsTest, OpenOverloadPastDeadlineSurfaces) {
  const auto record = harness.OpenOn(harness.stream(0), "r", false);
  const auto patient = harness.OpenOn(harness.stream(0), "patient", false);
  harness.End(harness.stream(0));
  harness.Welcome(harness.last_stream());
  v1::Error overloaded = StateHarness::MakeError(absl::StatusCode::kResourceExhausted, v1::CLIENT_LIMIT);
  overloaded.mutable_retry_after()->set_seconds(40);
  overloaded.set_limit("client_sequences 10");

  client::SequenceOptions sequence;
  sequence.request_id = "new";
  const auto opened = harness.Open(sequence);
  harness.RefuseOpen(harness.last_stream(), harness.TakeOpen(harness.last_stream()), overloaded);
  ASSERT_TRUE(*opened.over);
  EXPECT_EQ(client::ErrorOf(*opened.status)->limit, "client_sequences 10") << *opened.status;

  const auto hurried = harness.Submit({record}, absl::Seconds(20));
  const auto waits = harness.Submit({patient}, absl::Seconds(60));
  for (int i = 0; i < 2; ++i) {
    harness.RefuseOpen(harness.last_stream(), harness.TakeOpen(harness.last_stream()), overloaded);
  }
  ASSERT_EQ(hurried->times, 1);
  EXPECT_EQ(ErrorOfRow(hurried->rows[0])->reason, v1::CLIENT_LIMIT);
  EXPECT_EQ(waits->times, 0);
  harness.MoveBy(absl::Seconds(40));
  EXPECT_EQ(harness.TakeOpen(harness.last_stream()).request_id(), "patient");
}

TEST_F(RowsTest, ErrorsSurfaceTypedAndAlone) {
  const auto one = harness.OpenOn(harness.stream(0), "one", true);
  const auto two = harness.OpenOn(harness.stream(0), "two", false);
  const auto results = harness.Submit({one, two});
  const v1::Step step = harness.TakeStep(harness.stream(0));
  v1::Error superseded = StateHarness::MakeError(absl::StatusCode::kAborted, v1::SUPERSEDED);
  superseded.set_field("step.rows[0]");
  superseded.set_limit("> 5000");
  harness.RefuseRow(harness.stream(0), step, 0, superseded);
  harness.AnswerRow(harness.stream(0), step, 1, 5);
  ASSERT_EQ(results->times, 1);
  const client::RowError* error = ErrorOfRow(results->rows[0]);
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(error->code, absl::StatusCode::kAborted);
  EXPECT_EQ(error->reason, v1::SUPERSEDED);
  EXPECT_EQ(error->field, "step.rows[0]");
  EXPECT_EQ(error->limit, "> 5000");
  EXPECT_EQ(error->message, "as scripted");
  EXPECT_EQ(DrawOfRow(results->rows[1])->token(), 5);
  EXPECT_EQ(StateHarness::Position(*one), 2);
}

TEST_F(RowsTest, FailedDeviceMovesStepToAnotherStream) {
  const auto record = harness.OpenOn(harness.stream(0), "r", false);
  const auto results = harness.Submit({record});
  harness.RefuseRow(harness.stream(0), harness.TakeStep(harness.stream(0)), 0,
                    StateHarness::MakeError(absl::StatusCode::kUnavailable, v1::DEVICE_FAILED));
  ASSERT_EQ(harness.connector.streams.size(), 2);
  harness.Welcome(harness.stream(1));
  EXPECT_TRUE(harness.stream(0).cancelled);
  EXPECT_TRUE(harness.stream(1).sent.empty()) << "not before a wait";
  harness.MoveTo(harness.state.next_event(harness.now));
  harness.AcceptOpen(harness.stream(1), harness.TakeOpen(harness.stream(1)), false);
  harness.AnswerRow(harness.stream(1), harness.TakeStep(harness.stream(1)), 0, 5);
  EXPECT_EQ(results->times, 1);
}

TEST_F(RowsTest, DeadlineFailsRowsNextStepReopens) {
  const auto record = harness.OpenOn(harness.stream(0), "r", true);
  const auto results = harness.Submit({record}, absl::Seconds(2));
  const v1::Step step = harness.TakeStep(harness.stream(0));
  EXPECT_EQ(step.timeout().seconds(), 2);
  EXPECT_EQ(harness.state.next_event(harness.now), harness.now + absl::Seconds(2));
  harness.MoveBy(absl::Seconds(2));
  ASSERT_EQ(results->times, 1);
  EXPECT_EQ(ErrorOfRow(results->rows[0])->reason, v1::DEADLINE_PASSED);
  EXPECT_FALSE(harness.stream(0).cancelled) << "the bytes were free, so the stream stays";

  harness.AnswerRow(harness.stream(0), step, 0, 5);  // too late to count
  EXPECT_EQ(StateHarness::Position(*record), 2);

  const auto next = harness.Submit({record});
  const v1::OpenSequence open = harness.TakeOpen(harness.stream(0));
  harness.AcceptOpen(harness.stream(0), open, true, 3, 99);
  const v1::Step retried = harness.TakeStep(harness.stream(0));
  EXPECT_GT(retried.rows(0).step_id(), step.rows(0).step_id());
  EXPECT_EQ(retried.rows(0).position(), 2);
}

TEST_F(RowsTest, DeadlineWithBytesHeldGivesUpStream) {
  const auto one = harness.OpenOn(harness.stream(0), "one", false);
  const auto two = harness.OpenOn(harness.stream(0), "two", false);
  const auto slow = harness.Submit({one}, absl::Seconds(2));  // not read: the network is stuck
  const auto other = harness.Submit({two}, absl::Seconds(20));
  harness.MoveBy(absl::Seconds(2));
  EXPECT_TRUE(harness.stream(0).cancelled);
  ASSERT_EQ(slow->times, 1);
  EXPECT_EQ(ErrorOfRow(slow->rows[0])->reason, v1::DEADLINE_PASSED);
  ASSERT_EQ(harness.connector.streams.size(), 2);
  harness.Welcome(harness.stream(1));
  harness.AcceptOpen(harness.stream(1), harness.TakeOpen(harness.stream(1)), false);
  harness.AnswerRow(harness.stream(1), harness.TakeStep(harness.stream(1)), 0, 5);
  EXPECT_EQ(other->times, 1);
}

TEST_F(RowsTest, CallbackWaitsUntilBytesAreFree) {
  const auto record = harness.OpenOn(harness.stream(0), "r", false);
  const auto results = harness.Submit({record});
  {
    const SentMessage held = harness.Take(harness.stream(0), v1::StreamRequest::kStep);
    harness.AnswerRow(harness.stream(0), held.message.step(), 0, 5);
    EXPECT_EQ(StateHarness::Position(*record), 3);
    EXPECT_EQ(results->times, 0) << "the transport still refers to the caller's memory";
  }
  EXPECT_EQ(results->times, 1);
}

TEST_F(RowsTest, SecondStepInFlightFailsAlone) {
  const auto one = harness.OpenOn(harness.stream(0), "one", false);
  const auto two = harness.OpenOn(harness.stream(0), "two", false);
  const auto first = harness.Submit({one});
  const auto second = harness.Submit({one, two, two});
  const v1::Step first_step = harness.TakeStep(harness.stream(0));
  const v1::Step second_step = harness.TakeStep(harness.stream(0));
  ASSERT_EQ(second_step.rows_size(), 1);
  EXPECT_EQ(second_step.rows(0).request_id(), "two");
  harness.AnswerRow(harness.stream(0), second_step, 0, 5);
  ASSERT_EQ(second->times, 1);
  EXPECT_EQ(ErrorOfRow(second->rows[0])->reason, v1::STEP_IN_FLIGHT);
  EXPECT_EQ(DrawOfRow(second->rows[1])->token(), 5);
  EXPECT_EQ(ErrorOfRow(second->rows[2])->reason, v1::STEP_IN_FLIGHT);
  harness.AnswerRow(harness.stream(0), first_step, 0, 6);
  EXPECT_EQ(first->times, 1);
}

TEST_F(RowsTest, PartialAnswersAreAssembled) {
  const auto record = harness.OpenOn(harness.stream(0), "r", false);
  const auto results = harness.Submit({record});
  const v1::Step step = harness.TakeStep(harness.stream(0));
  v1::StreamResponse part = StateHarness::Draw(step, 0, 5);
  part.mutable_results()->mutable_rows(0)->mutable_draw()->add_kept_tokens(5);
  part.mutable_results()->mutable_rows(0)->mutable_draw()->set_continues(true);
  harness.Respond(harness.stream(0), part);
  EXPECT_EQ(results->times, 0);
  part.mutable_results()->mutable_rows(0)->mutable_draw()->set_kept_tokens(0, 6);
  part.mutable_results()->mutable_rows(0)->mutable_draw()->clear_continues();
  harness.Respond(harness.stream(0), part);
  ASSERT_EQ(results->times, 1);
  EXPECT_THAT(DrawOfRow(results->rows[0])->kept_tokens(), ElementsAre(5, 6));
  EXPECT_FALSE(DrawOfRow(results->rows[0])->continues());
}

TEST_F(RowsTest, AnswerForUnknownRowEndsStream) {
  const auto record = harness.OpenOn(harness.stream(0), "r", false);
  const auto results = harness.Submit({record});
  v1::StreamResponse response = StateHarness::Draw(harness.TakeStep(harness.stream(0)), 0, 5);
  response.mutable_results()->mutable_rows(0)->set_row(1);
  harness.Respond(harness.stream(0), response);
  EXPECT_TRUE(harness.stream(0).cancelled);
  EXPECT_EQ(results->times, 0);
  EXPECT_EQ(StateHarness::Position(*record), 2);
}

TEST_F(RowsTest, AnswerForAnotherStepEndsStream) {
  const auto record = harness.OpenOn(harness.stream(0), "r", false);
  const auto results = harness.Submit({record});
  v1::StreamResponse response = StateHarness::Draw(harness.TakeStep(harness.stream(0)), 0, 5);
  response.mutable_results()->mutable_rows(0)->set_step_id(9);
  harness.Respond(harness.stream(0), response);
  EXPECT_TRUE(harness.stream(0).cancelled);
  EXPECT_EQ(results->times, 0);
}

TEST_F(RowsTest, RejectedMessageFailsItsStep) {
  const auto record = harness.OpenOn(harness.stream(0), "r", false);
  const auto results = harness.Submit({record});
  harness.TakeStep(harness.stream(0));
  v1::StreamResponse response;
  response.mutable_rejected()->set_message_index(3);  // hello, open, step
  *response.mutable_rejected()->mutable_error() =
      StateHarness::MakeError(absl::StatusCode::kInvalidArgument, v1::TOO_MANY);
  harness.Respond(harness.stream(0), response);
  ASSERT_EQ(results->times, 1);
  EXPECT_EQ(ErrorOfRow(results->rows[0])->reason, v1::TOO_MANY);
}

TEST_F(RowsTest, StopEndsEverythingOnce) {
  const auto record = harness.OpenOn(harness.stream(0), "r", false);
  const auto results = harness.Submit({record});
  client::SequenceOptions sequence;
  sequence.request_id = "late";
  const auto opened = harness.Open(sequence);
  harness.state.Stop();
  harness.MoveBy(absl::ZeroDuration());
  ASSERT_EQ(results->times, 1);
  EXPECT_EQ(ErrorOfRow(results->rows[0])->reason, v1::STEP_CANCELLED);
  ASSERT_TRUE(*opened.over);
  EXPECT_EQ(opened.status->code(), absl::StatusCode::kCancelled);
  const auto after = harness.Submit({record});
  ASSERT_EQ(after->times, 1);
  EXPECT_EQ(ErrorOfRow(after->rows[0])->reason, v1::STEP_CANCELLED);
  EXPECT_EQ(harness.connector.streams.size(), 1);
}

TEST_F(RowsTest, ServersDisagreeingOnHistoryFailSequence) {
  const auto record = harness.OpenOn(harness.stream(0), "r", false);
  const auto results = harness.Submit({record});
  harness.End(harness.stream(0));
  harness.AcceptOpen(harness.last_stream(), Reopened(*record), true, 2, 99);
  ASSERT_EQ(results->times, 1);
  EXPECT_EQ(ErrorOfRow(results->rows[0])->code, absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace sortition::testing::rows_test
