// Opens without steps: refused, contradicted, answered too late.
#include "gtest/gtest.h"
#include "tests/client/state_harness.h"

namespace sortition::testing::opens_test {
namespace {

class OpensTest : public ::testing::Test {
 protected:
  OpensTest() { harness.Welcome(harness.stream(0)); }

  StateHarness harness{HarnessOptions()};
};

TEST_F(OpensTest, RefusalCarriesTheServicesError) {
  client::SequenceOptions sequence;
  sequence.request_id = "r";
  const auto opened = harness.Open(sequence);
  v1::Error error = StateHarness::MakeError(absl::StatusCode::kOutOfRange, v1::OUT_OF_RANGE);
  error.set_field("open.parameters.top_p");
  error.set_limit("(0, 1]");
  harness.RefuseOpen(harness.stream(0), harness.TakeOpen(harness.stream(0)), error);
  ASSERT_TRUE(*opened.over);
  EXPECT_EQ(opened.status->code(), absl::StatusCode::kOutOfRange);
  const auto typed = client::ErrorOf(*opened.status);
  ASSERT_TRUE(typed.has_value());
  EXPECT_EQ(typed->field, "open.parameters.top_p");
  EXPECT_EQ(typed->limit, "(0, 1]");
}

// Beams are long lines of forks of forks.
TEST_F(OpensTest, OpenForkKeepsNothingOfParent) {
  auto parent = harness.OpenOn(harness.stream(0), "parent", false);
  client::SequenceOptions options;
  options.request_id = "child";
  options.vocabulary_size = StateHarness::kVocabulary;
  options.start_position = 2;
  auto child = std::make_shared<client::SequenceRecord>(options);
  child->origin = client::SequenceRecord::Origin{parent, 2};
  const auto opened = harness.Open(child);
  harness.AcceptOpen(harness.stream(0), harness.TakeOpen(harness.stream(0)), false);
  ASSERT_TRUE(opened.status->ok()) << *opened.status;
  harness.state.Close(parent.get());
  const std::weak_ptr<client::SequenceRecord> watch = std::exchange(parent, nullptr);
  EXPECT_TRUE(watch.expired());
}

// The server may have a sequence with this request id from an earlier client.
TEST_F(OpensTest, HistoryWithoutPromptIsRefused) {
  client::SequenceOptions sequence;
  sequence.request_id = "r";
  sequence.start_position = 5;
  sequence.parameters.set_repetition_penalty(1.5);
  const auto opened = harness.Open(sequence);
  harness.AcceptOpen(harness.stream(0), harness.TakeOpen(harness.stream(0)), true, 7, 99);
  ASSERT_TRUE(*opened.over);
  EXPECT_EQ(client::ErrorOf(*opened.status)->field, "start_position") << *opened.status;
}

// The answer of the open arrives after its deadline.
TEST_F(OpensTest, OpenSequenceIsOpenedAtOnce) {
  client::SequenceOptions sequence;
  sequence.request_id = "r";
  const auto late = harness.Open(sequence);
  const v1::OpenSequence sent = harness.TakeOpen(harness.stream(0));
  harness.MoveBy(harness.options.default_timeout);
  ASSERT_TRUE(*late.over);
  EXPECT_TRUE(absl::IsDeadlineExceeded(*late.status));
  harness.AcceptOpen(harness.stream(0), sent, false);
  const auto again = harness.Open(late.record);
  ASSERT_TRUE(*again.over);
  EXPECT_TRUE(again.status->ok()) << *again.status;
  EXPECT_TRUE(harness.stream(0).sent.empty());
}

// The operator removes a policy with a mark, which needs the history, while the history is on its way.
TEST_F(OpensTest, UnneededHistoryIsLeftOut) {
  client::SequenceOptions sequence;
  sequence.request_id = "r";
  sequence.prompt = {1, 2};
  const auto opened = harness.Open(sequence);
  harness.RefuseOpen(harness.stream(0), harness.TakeOpen(harness.stream(0)),
                     StateHarness::MakeError(absl::StatusCode::kFailedPrecondition, v1::HISTORY_REQUIRED));
  const v1::OpenSequence second = harness.TakeOpen(harness.stream(0));
  EXPECT_EQ(second.history().tokens_size(), 2);
  v1::Error error = StateHarness::MakeError(absl::StatusCode::kInvalidArgument, v1::CONTRADICTION);
  error.set_field("open.history");
  harness.RefuseOpen(harness.stream(0), second, error);
  const v1::OpenSequence third = harness.TakeOpen(harness.stream(0));
  EXPECT_FALSE(third.has_history());
  harness.AcceptOpen(harness.stream(0), third, false);
  ASSERT_TRUE(*opened.over);
  EXPECT_TRUE(opened.status->ok()) << *opened.status;
}

TEST_F(OpensTest, CloseWhileOpeningClosesOnceOpen) {
  client::SequenceOptions sequence;
  sequence.request_id = "r";
  const auto opened = harness.Open(sequence);
  const v1::OpenSequence open = harness.TakeOpen(harness.stream(0));
  harness.MoveBy(harness.options.default_timeout);
  ASSERT_TRUE(*opened.over);
  EXPECT_EQ(opened.status->code(), absl::StatusCode::kDeadlineExceeded);
  harness.state.Close(opened.record.get());
  EXPECT_TRUE(harness.stream(0).sent.empty());
  harness.AcceptOpen(harness.stream(0), open, false);
  EXPECT_EQ(harness.Take(harness.stream(0), v1::StreamRequest::kClose).message.close().epoch(), open.epoch());
}

}  // namespace
}  // namespace sortition::testing::opens_test
