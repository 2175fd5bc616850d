// Departure of a step's answers: together, except for rows that would delay the others.

#include "absl/strings/str_cat.h"
#include "service/limits.h"
#include "tests/support/session.h"

namespace sortition::service::session_answers_test {
namespace {

constexpr uint32_t kVocabulary = 32;

class SessionAnswers : public ::testing::Test {
 protected:
  // The device takes `batches_in_flight` batches of two rows at a time.
  explicit SessionAnswers(uint32_t batches_in_flight = 2)
      : engine_(TestEngine::OnFake({}, {.max_batch_rows = 2, .batches_in_flight = batches_in_flight})) {}

  void Send(int rows, bool early = false) {
    StepBuilder step(1, kVocabulary);
    for (int i = 0; i < rows; ++i) {
      const std::string name = absl::StrCat("s", i);
      worker_.MustOpen(MakeOpen(name, 1, kVocabulary));
      step.AddRow(name, 1, 0, F32Peak(kVocabulary, 1));
    }
    step.step().set_answer_early(early);
    worker_.Send(step.Build());
  }
  // Returns the number of rows of each message that came since the last call.
  std::vector<int> RowsOfMessages() {
    std::vector<int> rows;
    while (auto message = worker_.sink().Take([](const auto& response) { return response.has_results(); })) {
      rows.push_back(message->results().rows_size());
    }
    return rows;
  }

  TestEngine engine_;
  StreamWorker worker_{engine_.get()};
};

class SessionAnswersOneByOne : public SessionAnswers {
 protected:
  SessionAnswersOneByOne() : SessionAnswers(1) {}
};

using MessageRows = std::vector<int>;

TEST_F(SessionAnswers, TwoBatchesShareOneMessage) {
  Send(4);
  ASSERT_EQ(engine_.fake().held(), 2);
  engine_.fake().Finish(1);
  EXPECT_EQ(RowsOfMessages(), MessageRows{});
  engine_.fake().Finish();
  EXPECT_EQ(RowsOfMessages(), MessageRows{4});
  EXPECT_TRUE(worker_.IsIdle());
}

TEST_F(SessionAnswers, LeaveAsRowsFinishIfRequested) {
  Send(4, /*early=*/true);
  engine_.fake().Finish(1);
  EXPECT_EQ(RowsOfMessages(), MessageRows{2});
  engine_.fake().Finish();
  EXPECT_EQ(RowsOfMessages(), MessageRows{2});
  EXPECT_TRUE(worker_.IsIdle());
}

// Queued rows may take long, or pass the step's deadline.
TEST_F(SessionAnswersOneByOne, DoNotWaitForQueuedRows) {
  Send(6);
  engine_.fake().Finish();
  EXPECT_EQ(RowsOfMessages(), MessageRows{2}) << "two rows are queued";
  engine_.fake().Finish();
  EXPECT_EQ(RowsOfMessages(), MessageRows{}) << "the device has the last two";
  engine_.fake().Finish();
  EXPECT_EQ(RowsOfMessages(), MessageRows{4});
  EXPECT_TRUE(worker_.IsIdle());
}

TEST_F(SessionAnswers, RepeatedRowsDelayNoOtherBatch) {
  Send(4);
  engine_.fake().Finish();
  EXPECT_EQ(RowsOfMessages(), MessageRows{});
  engine_.fake().Fail(absl::InternalError("scripted"));
  engine_.fake().FinishAll();
  EXPECT_EQ(RowsOfMessages(), MessageRows{4}) << "with the refusals of the rows that failed";
  EXPECT_TRUE(worker_.IsIdle());
}

TEST_F(SessionAnswers, ImmediateRefusalsLeaveAtOnce) {
  StepBuilder step(1, kVocabulary);
  worker_.MustOpen(MakeOpen("s0", 1, kVocabulary));
  step.AddRow("s0", 1, 0, F32Peak(kVocabulary, 1));
  step.AddRow("unknown", 1, 0, F32Peak(kVocabulary, 1));
  worker_.Send(step.Build());
  EXPECT_EQ(RowsOfMessages(), MessageRows{1});
  engine_.fake().FinishAll();
  EXPECT_EQ(RowsOfMessages(), MessageRows{1});
}

// Answers of one message's size: a step of thousands of rows, or of long answers, does not gather all its answers in
// memory.
TEST(SessionLargeAnswers, AreHeldUpToMessageSize) {
  constexpr uint32_t kLarge = 200'000;  // each of its tokens is in the answer
  TestEngine engine = TestEngine::OnFake({}, {.max_batch_rows = 1, .batches_in_flight = 4});
  StreamWorker worker(engine.get());
  StepBuilder step(1, kLarge);
  const std::string row = F32Bytes(std::vector<float>(kLarge));
  for (int i = 0; i < 4; ++i) {
    v1::OpenSequence open = MakeOpen(absl::StrCat("s", i), 1, kLarge);
    open.mutable_parameters()->mutable_kept_set()->set_tokens(true);
    worker.MustOpen(open);
    step.AddRow(open.request_id(), 1, 0, row);
  }
  worker.Send(step.Build());
  ASSERT_EQ(engine.fake().held(), 4);
  engine.fake().Finish();
  EXPECT_EQ(worker.sink().size(), 0);
  engine.fake().Finish();
  EXPECT_GE(worker.sink().size(), 2) << "more than fits a message";
  engine.fake().FinishAll();
  const std::vector<v1::RowResult> results = worker.Results(1, 4);
  for (const v1::RowResult& result : results) EXPECT_FALSE(result.has_error()) << result.ShortDebugString();
  EXPECT_TRUE(worker.IsIdle());
}

}  // namespace
}  // namespace sortition::service::session_answers_test
