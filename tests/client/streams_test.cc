// The life of streams: connecting, loss, draining, fallback.
#include "gtest/gtest.h"
#include "sortition/in_process.h"
#include "tests/client/state_harness.h"

namespace sortition::testing::streams_test {
namespace {

TEST(StreamsTest, NothingFollowsHelloBeforeWelcome) {
  StateHarness harness(HarnessOptions());
  client::SequenceOptions sequence;
  sequence.request_id = "r";
  const auto opened = harness.Open(sequence);
  ASSERT_EQ(harness.connector.streams.size(), 1);
  ASSERT_EQ(harness.stream(0).sent.size(), 1);
  EXPECT_EQ(harness.stream(0).sent.front().message.hello().worker_session(), "worker");
  harness.Welcome(harness.stream(0));
  EXPECT_EQ(harness.TakeOpen(harness.stream(0)).request_id(), "r");
  EXPECT_FALSE(*opened.over);
}

TEST(StreamsTest, FailedTargetYieldsToNext) {
  StateHarness harness(HarnessOptions({"a", "b"}));
  harness.End(harness.last_stream());
  ASSERT_EQ(harness.connector.streams.size(), 2);
  EXPECT_EQ(harness.stream(1).target, 1);
  harness.End(harness.last_stream());
  EXPECT_EQ(harness.connector.streams.size(), 2) << "a failed round waits";
  EXPECT_TRUE(harness.state.links().exhausted());
  const absl::Time retry = harness.state.next_event(harness.now);
  EXPECT_GT(retry, harness.now);
  harness.MoveTo(retry);
  ASSERT_EQ(harness.connector.streams.size(), 3);
  EXPECT_EQ(harness.stream(2).target, 0);
}

TEST(StreamsTest, StreamWithoutWelcomeIsGivenUp) {
  StateHarness harness(HarnessOptions({"a", "b"}));
  EXPECT_EQ(harness.state.next_event(harness.now), harness.now + harness.options.retry.connect_timeout);
  harness.MoveBy(harness.options.retry.connect_timeout);
  EXPECT_TRUE(harness.stream(0).cancelled);
  ASSERT_EQ(harness.connector.streams.size(), 2);
  EXPECT_EQ(harness.stream(1).target, 1);
}

TEST(StreamsTest, ServerOfAnotherLawIsNotUsed) {
  StateHarness harness(HarnessOptions({"a", "b"}));
  v1::StreamResponse response;
  response.mutable_welcome()->add_law_versions(law::kLawVersion + 1);
  harness.Respond(harness.stream(0), response);
  EXPECT_TRUE(harness.stream(0).cancelled);
  ASSERT_EQ(harness.connector.streams.size(), 2);
  EXPECT_NE(harness.state.links().last_failure().find("law version"), std::string::npos);
}

TEST(StreamsTest, RefusedHelloFailsWithReason) {
  StateHarness harness(HarnessOptions());
  v1::StreamResponse response;
  response.mutable_rejected()->set_message_index(1);
  *response.mutable_rejected()->mutable_error() =
      StateHarness::MakeError(absl::StatusCode::kOutOfRange, v1::OUT_OF_RANGE);
  harness.Respond(harness.stream(0), response);
  EXPECT_TRUE(harness.stream(0).cancelled);
  EXPECT_NE(harness.state.links().last_failure().find("OUT_OF_RANGE"), std::string::npos);
}

TEST(StreamsTest, IgnoredFieldsOfAllStreamsAreNamed) {
  client::ClientOptions options = HarnessOptions({"a", "b"});
  options.ignore_unknown_fields = true;
  StateHarness harness(options);
  const std::string hello = harness.stream(0).sent.front().message.hello().ShortDebugString();
  EXPECT_NE(hello.find("UNKNOWN_FIELDS_IGNORE"), std::string::npos) << hello;
  harness.Welcome(harness.stream(0));
  v1::StreamResponse report;
  report.mutable_ignored_fields()->add_fields("step.rows[].#9");
  report.mutable_ignored_fields()->add_fields("open.#99");
  harness.Respond(harness.stream(0), report);
  EXPECT_FALSE(harness.stream(0).cancelled);
  harness.End(harness.stream(0));
  v1::StreamResponse welcome;
  welcome.mutable_welcome()->add_law_versions(law::kLawVersion);
  welcome.mutable_welcome()->add_ignored_fields("hello.#7");
  harness.Respond(harness.stream(1), welcome);
  harness.Respond(harness.stream(1), report);
  EXPECT_EQ(harness.state.links().ignored_fields(),
            (std::vector<std::string>{"hello.#7", "open.#99", "step.rows[].#9"}));
}

TEST(StreamsTest, UnknownFieldsAreRefusedUnlessAskedFor) {
  StateHarness harness(HarnessOptions());
  EXPECT_EQ(harness.stream(0).sent.front().message.hello().ShortDebugString().find("unknown_fields"),
            std::string::npos);
}

TEST(StreamsTest, EpochsGrowWithEveryOpenAndEveryStream) {
  StateHarness harness(HarnessOptions());
  harness.Welcome(harness.stream(0));
  const auto one = harness.OpenOn(harness.stream(0), "one", false);
  const auto two = harness.OpenOn(harness.stream(0), "two", false);
  EXPECT_EQ(one->standing.epoch, StateHarness::kFirstEpoch);
  EXPECT_GT(two->standing.epoch, one->standing.epoch);
  harness.End(harness.stream(0));
  harness.Welcome(harness.stream(1));
  const auto results = harness.Submit({one});
  EXPECT_GT(harness.TakeOpen(harness.stream(1)).epoch(), two->standing.epoch);
}

TEST(StreamsTest, DrainingStreamFinishesButTakesNothingNew) {
  StateHarness harness(HarnessOptions({"a", "b"}));
  harness.Welcome(harness.stream(0));
  const auto one = harness.OpenOn(harness.stream(0), "one", false);
  const auto two = harness.OpenOn(harness.stream(0), "two", false);
  const auto before = harness.Submit({one});
  const v1::Step step = harness.TakeStep(harness.stream(0));
  harness.Drain(harness.stream(0));
  ASSERT_EQ(harness.connector.streams.size(), 2);
  EXPECT_EQ(harness.stream(1).target, 1);
  harness.Welcome(harness.stream(1));
  const auto after = harness.Submit({two});
  EXPECT_TRUE(harness.stream(0).sent.empty());
  EXPECT_TRUE(harness.stream(1).sent.empty()) << "a sequence must not have steps on two streams";

  harness.AnswerRow(harness.stream(0), step, 0, 5);
  EXPECT_EQ(before->times, 1);
  EXPECT_TRUE(harness.stream(0).cancelled);
  const v1::OpenSequence open = harness.TakeOpen(harness.stream(1));
  EXPECT_EQ(open.request_id(), "two");
  harness.AcceptOpen(harness.stream(1), open, false);
  harness.AnswerRow(harness.stream(1), harness.TakeStep(harness.stream(1)), 0, 6);
  EXPECT_EQ(after->times, 1);
}

TEST(StreamsTest, FallbackServesUntilTargetReturns) {
  client::ClientOptions options = HarnessOptions();
  options.in_process = client::InProcessEngine();
  StateHarness harness(options);
  harness.End(harness.stream(0));
  ASSERT_EQ(harness.connector.streams.size(), 2);
  EXPECT_EQ(harness.stream(1).target, 1) << "one above the targets: in process";
  harness.Welcome(harness.stream(1));
  EXPECT_TRUE(harness.state.links().in_process());
  const auto record = harness.OpenOn(harness.stream(1), "r", false);
  const auto local = harness.Submit({record});
  const v1::Step step = harness.TakeStep(harness.stream(1));

  harness.MoveTo(harness.state.next_event(harness.now));
  ASSERT_EQ(harness.connector.streams.size(), 3);
  EXPECT_EQ(harness.stream(2).target, 0) << "the target is tried while the fallback serves";
  harness.Welcome(harness.stream(2));
  EXPECT_FALSE(harness.stream(1).cancelled) << "a step is in flight";
  harness.AnswerRow(harness.stream(1), step, 0, 5);
  EXPECT_EQ(local->times, 1);
  EXPECT_TRUE(harness.stream(1).cancelled);
  EXPECT_FALSE(harness.state.links().in_process());

  const auto remote = harness.Submit({record});
  harness.AcceptOpen(harness.stream(2), harness.TakeOpen(harness.stream(2)), false);
  const v1::Step next = harness.TakeStep(harness.stream(2));
  EXPECT_EQ(next.rows(0).position(), 3);
}

TEST(StreamsTest, FallbackStaysIfSuccessorEndsEarly) {
  client::ClientOptions options = HarnessOptions();
  options.in_process = client::InProcessEngine();
  StateHarness harness(options);
  harness.End(harness.stream(0));
  harness.Welcome(harness.stream(1));
  const auto record = harness.OpenOn(harness.stream(1), "r", false);
  const auto before = harness.Submit({record});
  const v1::Step step = harness.TakeStep(harness.stream(1));
  harness.MoveTo(harness.state.next_event(harness.now));
  harness.Welcome(harness.stream(2));
  EXPECT_FALSE(harness.state.usable()) << "what is new waits for the target";
  harness.End(harness.stream(2));
  harness.AnswerRow(harness.stream(1), step, 0, 5);
  EXPECT_EQ(before->times, 1);

  const auto after = harness.Submit({record});
  harness.AnswerRow(harness.stream(1), harness.TakeStep(harness.stream(1)), 0, 6);
  EXPECT_EQ(after->times, 1);
  EXPECT_TRUE(harness.state.links().in_process());
  harness.MoveTo(harness.state.next_event(harness.now));
  EXPECT_EQ(harness.last_stream().target, 0) << "the target is tried on";
  harness.Welcome(harness.last_stream());
  EXPECT_TRUE(harness.stream(1).cancelled);
  EXPECT_FALSE(harness.state.links().in_process());
}

TEST(StreamsTest, SamplerStateKeepsFallbackWhileOpen) {
  for (const bool closes : {false, true}) {
    client::ClientOptions options = HarnessOptions();
    options.in_process = client::InProcessEngine();
    options.retry.fallback_stay = absl::Minutes(2);
    StateHarness harness(options);
    harness.End(harness.stream(0));
    harness.Welcome(harness.stream(1));
    client::SequenceOptions sequence;
    sequence.request_id = "r";
    sequence.parameters.mutable_mirostat()->set_version(2);
    const auto opened = harness.Open(sequence);
    harness.AcceptOpen(harness.stream(1), harness.TakeOpen(harness.stream(1)), false);
    const auto local = harness.Submit({opened.record});
    const v1::Step step = harness.TakeStep(harness.stream(1));
    harness.MoveTo(harness.state.next_event(harness.now));
    harness.Welcome(harness.stream(2));
    const absl::Time welcomed = harness.now;
    harness.AnswerRow(harness.stream(1), step, 0, 5);
    EXPECT_EQ(local->times, 1);
    harness.MoveBy(absl::Minutes(1));
    EXPECT_TRUE(harness.state.links().in_process());
    harness.Submit({opened.record}, absl::Hours(1));
    harness.AnswerRow(harness.stream(1), harness.TakeStep(harness.stream(1)), 0, 6);
    if (closes) {
      harness.state.Close(opened.record.get());
      harness.MoveBy(absl::ZeroDuration());
    } else {
      EXPECT_EQ(harness.state.next_event(harness.now), welcomed + options.retry.fallback_stay);
      harness.MoveTo(welcomed + options.retry.fallback_stay);
    }
    EXPECT_FALSE(harness.state.links().in_process());
    EXPECT_TRUE(harness.stream(1).cancelled);
    EXPECT_EQ(harness.state.next_event(harness.now), absl::InfiniteFuture());
  }
}

TEST(StreamsTest, LoneFallbackStartsAtOnce) {
  client::ClientOptions options = HarnessOptions({});
  options.in_process = client::InProcessEngine();
  StateHarness harness(options);
  harness.Welcome(harness.stream(0));
  EXPECT_EQ(harness.state.next_event(harness.now), absl::InfiniteFuture());
  harness.MoveBy(absl::Hours(1));
  EXPECT_EQ(harness.connector.streams.size(), 1);
}

TEST(StreamsTest, EventsOfEndedStreamsAreIgnored) {
  StateHarness harness(HarnessOptions());
  harness.Welcome(harness.stream(0));
  const auto record = harness.OpenOn(harness.stream(0), "r", false);
  const auto results = harness.Submit({record});
  const v1::Step step = harness.TakeStep(harness.stream(0));
  harness.End(harness.stream(0));
  harness.AnswerRow(harness.stream(0), step, 0, 5);
  harness.End(harness.stream(0));
  EXPECT_EQ(results->times, 0);
  EXPECT_EQ(StateHarness::Position(*record), 2);
  ASSERT_EQ(harness.connector.streams.size(), 2);
  EXPECT_FALSE(harness.stream(1).cancelled);
}

}  // namespace
}  // namespace sortition::testing::streams_test
