// Rows and bytes that a stream may leave unanswered: counted on arrival, released when answers have left, and zero at
// the end.

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "service/text/look_ahead.h"
#include "tests/stream/stateful_stream.h"
#include "tests/support/scale.h"

namespace sortition::service::session_window_test {
namespace {

constexpr uint32_t kVocabulary = 32;

v1::StreamRequest Step(uint64_t batch_id, int rows) {
  StepBuilder step(batch_id, kVocabulary);
  for (int i = 0; i < rows; ++i) step.AddRow(absl::StrCat("s", i), 1, 0, F32Peak(kVocabulary, 1));
  return step.Build();
}

void OpenAll(StreamWorker* worker, int count) {
  for (int i = 0; i < count; ++i) worker->MustOpen(MakeOpen(absl::StrCat("s", i), 1, kVocabulary));
}

TEST(SessionWindow, RowsCountUntilAnswersLeave) {
  TestEngine engine = TestEngine::OnFake({.stream_unanswered_rows = 4}, {.max_batch_rows = 2});
  StreamWorker worker(engine.get());
  OpenAll(&worker, 4);
  EXPECT_TRUE(worker.session().WantsFrames());
  EXPECT_TRUE(worker.session().Idle());
  v1::StreamRequest step = Step(1, 3);
  step.mutable_step()->set_answer_early(true);
  worker.Send(step);
  EXPECT_TRUE(worker.session().WantsFrames());
  EXPECT_FALSE(worker.session().Idle());
  worker.Send(Step(2, 1));
  EXPECT_FALSE(worker.session().WantsFrames());
  engine.fake().Finish();
  EXPECT_FALSE(worker.session().WantsFrames()) << "answered, but not left";
  worker.LetLeave();
  EXPECT_TRUE(worker.session().WantsFrames());
  EXPECT_FALSE(worker.session().Idle());
  engine.fake().FinishAll();
  EXPECT_TRUE(worker.IsIdle());
}

TEST(SessionWindow, BytesCountUntilLastAnswerLeaves) {
  const v1::StreamRequest step = Step(1, 3);
  TestEngine engine = TestEngine::OnFake({.stream_unanswered_bytes = step.ByteSizeLong()}, {.max_batch_rows = 2});
  StreamWorker worker(engine.get());
  OpenAll(&worker, 3);
  worker.Send(step);
  EXPECT_FALSE(worker.session().WantsFrames());
  engine.fake().Finish();
  worker.LetLeave();
  EXPECT_FALSE(worker.session().WantsFrames()) << "a row still needs the message";
  engine.fake().Finish();
  EXPECT_FALSE(worker.session().WantsFrames());
  EXPECT_TRUE(worker.IsIdle());
  EXPECT_TRUE(worker.session().WantsFrames());
}

// A window of these bytes is full with the step, or not, and empty in the end.
void ExpectFull(bool is_full, uint64_t window, const std::vector<v1::OpenSequence>& opens,
                const v1::StreamRequest& step) {
  TestEngine engine = TestEngine::OnFake({.stream_unanswered_bytes = window});
  StreamWorker worker(engine.get());
  for (const v1::OpenSequence& open : opens) worker.MustOpen(open);
  worker.Send(step);
  EXPECT_EQ(worker.session().WantsFrames(), !is_full);
  engine.fake().FinishAll();
  EXPECT_TRUE(worker.IsIdle());
  EXPECT_TRUE(worker.session().WantsFrames());
}

TEST(SessionWindow, JustBelowTheBytesIsNotFull) {
  const v1::StreamRequest step = Step(1, 1);
  ExpectFull(true, step.ByteSizeLong(), {MakeOpen("s0", 1, kVocabulary)}, step);
  ExpectFull(false, step.ByteSizeLong() + 1, {MakeOpen("s0", 1, kVocabulary)}, step);
}

// The lists that answers may have count like bytes that have come.
TEST(SessionWindow, KeptSetsCountUntilTheyLeave) {
  const v1::StreamRequest step = Step(1, 3);
  std::vector<v1::OpenSequence> opens;
  for (int i = 0; i < 3; ++i) {
    opens.push_back(MakeOpen(absl::StrCat("s", i), 1, kVocabulary));
    opens.back().mutable_parameters()->mutable_kept_set()->set_tokens(true);
  }
  ExpectFull(true, step.ByteSizeLong() + 3 * kVocabulary * sizeof(kernels::TokenBits), opens, step);
}

// Each position of a row has its own edits for the row's bans.
TEST(SessionWindow, BansCountAtEachPosition) {
  constexpr uint32_t kDrafts = 3;
  StepBuilder builder(1, kVocabulary);
  v1::StepRow& row = builder.AddRow("s0", 1, 0, F32Peak(kVocabulary, 1));
  for (uint32_t i = 0; i < kDrafts; ++i) {
    builder.AddTensorRow(F32Peak(kVocabulary, 1));
    row.mutable_verify_draft()->add_draft_tokens(1);
  }
  row.mutable_verify_draft()->set_mode(v1::VERIFY_MODE_COUPLED);
  for (const uint32_t token : {7u, 9u}) row.mutable_mask()->add_banned_tokens(token);
  const v1::StreamRequest step = builder.Build();
  const uint64_t bytes = step.ByteSizeLong() + 2 * (kDrafts + 1) * sizeof(kernels::LogitEdit);
  for (const uint64_t more : {0, 1}) ExpectFull(more == 0, bytes + more, {MakeOpen("s0", 1, kVocabulary)}, step);
}

// So are the views of the history that drafts need.
TEST(SessionWindow, ViewsOfDraftsCount) {
  const v1::OpenSequence open = StatefulOpen("a", 1);
  StepBuilder builder(1, kStatefulVocabulary);
  v1::StepRow& row = AddPeak(&builder, "a", 1, PlainSequence(open), 1);
  builder.AddTensorRow(F32Peak(kStatefulVocabulary, 1));
  row.mutable_verify_draft()->add_draft_tokens(1);
  row.mutable_verify_draft()->set_mode(v1::VERIFY_MODE_COUPLED);
  const v1::StreamRequest step = builder.Build();
  ExpectFull(true, step.ByteSizeLong() + sizeof(PositionView), {open}, step);
}

// Answers, refusals of rows and refusals of steps, in every mixture; damaged messages; streams that are closed.
TEST(SessionWindow, IsEmptyAfterAnything) {
  const testing::QuietProtobuf silencer;
  std::mt19937_64 random(10);
  const auto below = [&](uint64_t end) { return static_cast<uint32_t>(random() % end); };
  for (uint64_t round = 0; round < testing::Scaled(200); ++round) {
    TestEngine engine = TestEngine::OnFake({.max_queued_rows = 4 + below(8)},
                                           {.max_batch_rows = 1 + below(4), .batches_in_flight = 1 + below(2)});
    StreamWorker::Options options;
    options.seed = round;
    StreamWorker worker(engine.get(), options);
    for (int event = 0; event < 60; ++event) {
      const std::string name = absl::StrCat("s", below(4));
      switch (below(10)) {
        case 0:
          worker.Send(testing::Message(MakeOpen(name, below(3), kVocabulary)));
          break;
        case 1: {
          v1::OpenSequence open = StatefulOpen(name, below(3));
          open.mutable_history()->set_continues(below(3) == 0);
          worker.Send(testing::Message(open));
          break;
        }
        case 2:
          worker.Send(testing::MakeClose(name, below(3)));
          break;
        case 3:
          worker.Send(testing::MakeCancel(below(20)));
          break;
        case 4:
          engine.clock().Advance(absl::Milliseconds(below(3)));
          if (below(2) == 0) engine->batcher().Sweep();
          break;
        case 5:
          if (engine.fake().held() > 0) engine.fake().Finish();
          break;
        case 6:
          if (engine.fake().held() > 0) engine.fake().Fail(absl::InternalError("scripted"));
          break;
        default: {
          StepBuilder step(below(20), below(4) == 0 ? kStatefulVocabulary : kVocabulary);
          for (uint32_t row = 0, rows = below(6); row < rows; ++row) {
            step.AddRow(absl::StrCat("s", below(5)), below(4), below(4), F32Peak(kVocabulary, below(kVocabulary)))
                .set_history_hash(below(2));
          }
          if (below(3) == 0) step.step().mutable_timeout()->set_nanos(1'000'000);
          std::string bytes = step.Build().SerializeAsString();
          if (below(3) == 0) bytes[below(bytes.size())] = static_cast<char>(below(256));
          if (below(8) == 0) bytes.resize(below(bytes.size()));
          worker.SendBytes(std::move(bytes));
          break;
        }
      }
      if (below(4) == 0) worker.LetLeave();
    }
    if (below(3) == 0) worker.session().Close();
    engine.fake().FinishAll();
    ASSERT_TRUE(worker.IsIdle()) << "round " << round;
    ASSERT_TRUE(worker.session().WantsFrames());
    ASSERT_EQ(engine->batcher().queued_rows(), 0u);
  }
}

}  // namespace
}  // namespace sortition::service::session_window_test
