// Rows whose sampler keeps a state run position by position. A row that ends half-way, for any cause, is answered once
// and leaves the sequence as it was.

#include <string>
#include <vector>

#include "tests/support/judged_rows.h"

namespace sortition::service::session_in_order_test {
namespace {

using Positions = std::vector<uint32_t>;

v1::OpenSequence OpenMirostat(std::string_view request_id, uint64_t epoch) {
  v1::OpenSequence open = MakeOpen(request_id, epoch, kModelVocabulary);
  open.mutable_parameters()->mutable_mirostat()->set_version(2);
  open.mutable_parameters()->mutable_mirostat()->set_tau(3);
  open.mutable_parameters()->set_presence_penalty(0.5f);
  open.mutable_parameters()->mutable_processed_logprobs();
  open.mutable_history()->add_tokens(40);
  open.mutable_history()->set_prompt_length(1);
  return open;
}

void AddInOrder(std::string_view request_id, const PlainSequence& plain, uint64_t step_id, StepBuilder* step) {
  const std::string logits = F32Peak(kModelVocabulary, 1);
  step->AddRow(request_id, step_id, plain.position(), logits).set_history_hash(plain.hash());
}

// Adds the first step of a sequence: it drafts 1, 2 and 3, and the model continues with 1, 2, 3, 4.
void AddChain(std::string_view request_id, StepBuilder* step) {
  AddInOrder(request_id, PlainSequence(OpenMirostat(request_id, 1)), 1, step);
  v1::StepRow& row = *step->step().mutable_rows(step->step().rows_size() - 1);
  row.mutable_verify_draft()->set_mode(v1::VERIFY_MODE_COUPLED);
  for (const uint32_t token : {1u, 2u, 3u}) {
    row.mutable_verify_draft()->add_draft_tokens(token);
    step->AddTensorRow(F32Peak(kModelVocabulary, token + 1));
  }
}

StepBuilder ChainOf(uint64_t batch_id, std::string_view request_id) {
  StepBuilder step(batch_id, kModelVocabulary);
  AddChain(request_id, &step);
  return step;
}

class SessionInOrder : public ::testing::Test {
 protected:
  SessionInOrder() {
    for (const char* name : {"a", "b"}) worker_.MustOpen(OpenMirostat(name, 1));
    worker_.MustOpen(MakeOpen("stateless", 1, kModelVocabulary));
  }

  void Finish(const Positions& positions) {
    ASSERT_EQ(engine_.fake().held(), 1u);
    EXPECT_EQ(engine_.fake().Positions(0), positions);
    engine_.fake().Finish();
  }
  // The whole chain and a draw after it.
  std::vector<std::string> TextOf(TestEngine* engine, StreamWorker* worker, uint64_t batch_id) {
    worker->Send(ChainOf(batch_id, "a").Build());
    engine->fake().FinishAll();
    v1::VerifyResult verify = worker->Results(batch_id, 1).at(0).verify();
    EXPECT_EQ(verify.accepted(), 3u);
    PlainSequence plain(OpenMirostat("a", 1));
    for (const uint32_t token : testing::TokensOf(verify)) plain.Append(token);
    EXPECT_EQ(verify.history_hash(), plain.hash());
    StepBuilder step(batch_id + 1, kModelVocabulary);
    v1::StepRow& row = step.AddRow("a", 2, plain.position(), LogitsAfter({}, 9));
    row.set_history_hash(plain.hash());
    row.set_checkpoint(verify.checkpoint());
    worker->Send(step.Build());
    engine->fake().FinishAll();
    v1::DrawResult draw = worker->Results(batch_id + 1, 1).at(0).draw();
    // Each engine seals with a different key.
    verify.clear_checkpoint();
    draw.clear_checkpoint();
    return {verify.SerializeAsString(), draw.SerializeAsString()};
  }
  // Repeats the failed steps and expects the text of an undisturbed service: failures have left nothing behind.
  void ExpectTheTextOfAQuietService(StreamWorker* worker) {
    TestEngine quiet = TestEngine::OnFake();
    StreamWorker other(quiet.get());
    other.MustOpen(OpenMirostat("a", 1));
    EXPECT_EQ(TextOf(&engine_, worker, 100), TextOf(&quiet, &other, 100));
  }
  v1::Error ErrorOf(uint64_t batch_id) { return worker_.Results(batch_id, 1).at(0).error(); }

  TestEngine engine_ = TestEngine::OnFake({.max_queued_rows = 2}, {.max_batch_rows = 4});
  StreamWorker worker_{engine_.get()};
};

TEST_F(SessionInOrder, PositionRunsAfterOneBeforeIsAnswered) {
  worker_.Send(ChainOf(1, "a").Build());
  for (uint32_t position = 1; position <= 4; ++position) Finish({position});
  EXPECT_EQ(worker_.Results(1, 1).at(0).verify().accepted(), 3u);
  EXPECT_TRUE(worker_.IsIdle());
}

TEST_F(SessionInOrder, NothingRunsAfterRejectedDraft) {
  StepBuilder step = ChainOf(1, "a");
  step.step().mutable_rows(0)->mutable_verify_draft()->set_draft_tokens(1, 30);
  worker_.Send(step.Build());
  Finish({1});
  Finish({2});
  EXPECT_EQ(engine_.fake().held(), 0u);
  const v1::VerifyResult verify = worker_.Results(1, 1).at(0).verify();
  EXPECT_EQ(verify.accepted(), 1u);
  EXPECT_EQ(verify.matched(), 1u);
  EXPECT_EQ(verify.position_matched_size(), 3);
}

TEST_F(SessionInOrder, RowsOfAStepAdvanceTogether) {
  StepBuilder step(1, kModelVocabulary);
  AddChain("a", &step);
  step.AddRow("stateless", 1, 7, F32Peak(kModelVocabulary, 5));
  worker_.Send(step.Build());
  Finish({1, 7});
  StepBuilder other(2, kModelVocabulary);
  AddChain("b", &other);
  worker_.Send(other.Build());
  Finish({2});
  for (const Positions& positions : {Positions{1}, {3}, {2}, {4}, {3}, {4}}) Finish(positions);
  EXPECT_EQ(worker_.Results(1, 2).at(0).verify().accepted(), 3u);
  EXPECT_EQ(worker_.Results(2, 1).at(0).verify().accepted(), 3u);
}

TEST_F(SessionInOrder, CancelEndsRowBeforeNextPosition) {
  worker_.Send(ChainOf(1, "a").Build());
  Finish({1});
  worker_.Send(testing::MakeCancel(1));
  Finish({2});
  EXPECT_EQ(engine_.fake().held(), 0u);
  ExpectError(ErrorOf(1), Reason::kStepCancelled, "");
  ExpectTheTextOfAQuietService(&worker_);
}

TEST_F(SessionInOrder, DeadlineEndsRowBeforeNextPosition) {
  StepBuilder step = ChainOf(1, "a");
  step.step().mutable_timeout()->set_seconds(1);
  worker_.Send(step.Build());
  Finish({1});
  engine_.clock().Advance(absl::Seconds(1));
  Finish({2});
  ExpectError(ErrorOf(1), Reason::kDeadlinePassed, "step.timeout");
  ExpectTheTextOfAQuietService(&worker_);
}

TEST_F(SessionInOrder, DeviceFailureEndsRowBeforeNextPosition) {
  worker_.Send(ChainOf(1, "a").Build());
  Finish({1});
  engine_.fake().Fail(absl::InternalError("broken"));
  ExpectError(ErrorOf(1), Reason::kDeviceFailed, "");
  ExpectTheTextOfAQuietService(&worker_);
}

TEST_F(SessionInOrder, StreamEndEndsRowBeforeNextPosition) {
  worker_.Send(ChainOf(1, "a").Build());
  Finish({1});
  worker_.Disconnect();
  Finish({2});
  EXPECT_EQ(engine_.fake().held(), 0u);
  StreamWorker next(engine_.get());
  v1::OpenSequence open = OpenMirostat("a", 2);
  open.clear_history();
  next.MustOpen(open);
  ExpectTheTextOfAQuietService(&next);
}

TEST_F(SessionInOrder, SupersededRowIsRefusedAtItsEnd) {
  worker_.Send(ChainOf(1, "a").Build());
  Finish({1});
  StreamWorker next(engine_.get());
  v1::OpenSequence open = OpenMirostat("a", 2);
  open.clear_history();
  EXPECT_EQ(next.MustOpen(open).position(), 1u);
  engine_.fake().FinishAll();
  ExpectError(ErrorOf(1), Reason::kSuperseded, "");
  ExpectTheTextOfAQuietService(&next);
}

// A row that has begun stands where it was admitted, however full the queue is meanwhile. Its wait is counted anew at
// each position.
TEST_F(SessionInOrder, FullQueueRefusesNoLaterPosition) {
  StreamWorker others(engine_.get(), {.worker_session = "others"});
  others.MustOpen(MakeOpen("s", 1, kModelVocabulary));
  worker_.Send(ChainOf(1, "a").Build());
  for (uint64_t batch = 1; batch <= 40; ++batch) {
    StepBuilder step(batch, kModelVocabulary);
    step.AddRow("s", batch, 7, F32Peak(kModelVocabulary, 5));
    others.Send(step.Build());
    if (batch % 10 != 0) continue;
    engine_.clock().Advance(absl::Seconds(1));
    engine_.fake().Finish();
  }
  engine_.fake().FinishAll();
  EXPECT_EQ(worker_.Results(1, 1).at(0).verify().accepted(), 3u);
  EXPECT_GT(engine_.observer().refused(Reason::kOverloaded), 20u) << "the queue has been full";
  for (const absl::Duration wait : engine_.observer().queue_waits()) EXPECT_LE(wait, absl::Seconds(1));
}

}  // namespace
}  // namespace sortition::service::session_in_order_test
