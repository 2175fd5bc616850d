// Steps of sequences with state: repeated, late, in conflict, rewritten, cancelled, and failed.

#include <limits>

#include "tests/stream/stateful_stream.h"

namespace sortition::service::session_retry_test {
namespace {

class SessionRetry : public ::testing::Test {
 protected:
  SessionRetry() { worker_.MustOpen(open_); }

  // Runs a step of one row on the fake device to its answer.
  v1::RowResult Run(const v1::StreamRequest& step) {
    worker_.Send(step);
    engine_.fake().FinishAll();
    const auto results = worker_.Results(step.step().batch_id(), 1);
    return results.empty() ? v1::RowResult() : results[0];
  }
  // The step that follows, which draws `token`; keeps the plain sequence in step.
  v1::RowResult Draw(uint64_t step_id, uint32_t token) {
    const v1::RowResult result = Run(PeakStep(++batch_id_, "a", step_id, plain_, token));
    EXPECT_EQ(result.draw().token(), token) << result.ShortDebugString();
    plain_.Append(token);
    EXPECT_EQ(result.draw().history_hash(), plain_.hash());
    return result;
  }
  void ExpectStateIsThePlainSequences() {
    const v1::OpenedState state = worker_.MustOpen(Reopened(open_, 1));
    EXPECT_EQ(state.position(), plain_.position());
    EXPECT_EQ(state.history_hash(), plain_.hash());
    EXPECT_TRUE(worker_.IsIdle());
  }

  const v1::OpenSequence open_ = StatefulOpen("a", 1);
  PlainSequence plain_{open_};
  TestEngine engine_ = TestEngine::OnFake();
  StreamWorker worker_{engine_.get()};
  uint64_t batch_id_ = 100;
};

TEST_F(SessionRetry, RepeatedStepGetsSameAnswerCountsOnce) {
  const v1::StreamRequest step = PeakStep(1, "a", 1, plain_, 20);
  const v1::RowResult first = Run(step);
  ASSERT_EQ(first.draw().token(), 20u);
  for (uint64_t batch_id = 2; batch_id < 5; ++batch_id) {
    v1::StreamRequest again = step;
    again.mutable_step()->set_batch_id(batch_id);
    worker_.Send(again);
    EXPECT_EQ(engine_.fake().held(), 0u) << "the answer is known";
    EXPECT_EQ(worker_.Results(batch_id, 1).at(0).SerializeAsString(), first.SerializeAsString());
  }
  plain_.Append(20);
  ExpectStateIsThePlainSequences();
  EXPECT_EQ(worker_.MustOpen(Reopened(open_, 1)).last_step_id(), 1u);
}

// The id, the hash and the options name the step; its bytes are promised to be the same and not looked at.
TEST_F(SessionRetry, RepeatedStepIsNotSampledAgain) {
  Run(PeakStep(1, "a", 1, plain_, 20));
  EXPECT_EQ(Run(PeakStep(2, "a", 1, plain_, 33)).draw().token(), 20u);
}

TEST_F(SessionRetry, LogprobsAreRepeated) {
  v1::OpenSequence open = StatefulOpen("b", 1);
  open.mutable_parameters()->mutable_raw_logprobs()->set_top(3);
  open.mutable_parameters()->mutable_processed_logprobs()->set_top(3);
  worker_.MustOpen(open);
  const PlainSequence plain(open);
  const v1::RowResult first = Run(PeakStep(1, "b", 1, plain, 20));
  EXPECT_EQ(first.draw().raw().top_tokens_size(), 3);
  EXPECT_EQ(Run(PeakStep(2, "b", 1, plain, 20)).SerializeAsString(), first.SerializeAsString());
}

TEST_F(SessionRetry, SameIdWithOtherOptionsConflicts) {
  const PlainSequence before = plain_;
  Draw(1, 20);
  StepBuilder salted(1, kStatefulVocabulary);
  AddPeak(&salted, "a", 1, before, 20).set_draw_salt(1);
  ExpectError(Run(salted.Build()), Reason::kStepConflict, "step.rows[0].step_id");
  StepBuilder masked(2, kStatefulVocabulary);
  AddPeak(&masked, "a", 1, before, 20).mutable_mask()->mutable_allowed_tokens()->add_tokens(20);
  ExpectError(Run(masked.Build()), Reason::kStepConflict, "step.rows[0].step_id");
  ExpectError(Run(PeakStep(3, "a", 1, plain_, 20)), Reason::kStepConflict, "step.rows[0].step_id");
  ExpectStateIsThePlainSequences();
}

TEST_F(SessionRetry, PackedMasksAreComparedByBits) {
  const auto masked = [&](uint64_t batch_id, uint32_t other) {
    StepBuilder step(batch_id, kStatefulVocabulary);
    std::vector<bool> allowed(kStatefulVocabulary);
    allowed[20] = allowed[other] = true;
    AddPeak(&step, "a", 1, plain_, 20).mutable_mask()->set_mask_row(step.AddMask(allowed));
    return step.Build();
  };
  const v1::RowResult first = Run(masked(1, 21));
  EXPECT_EQ(first.draw().token(), 20u);
  EXPECT_EQ(Run(masked(2, 21)).SerializeAsString(), first.SerializeAsString());
  ExpectError(Run(masked(3, 22)), Reason::kStepConflict, "step.rows[0].step_id");
}

TEST_F(SessionRetry, LateDuplicateIsStale) {
  const v1::StreamRequest old = PeakStep(1, "a", 1, plain_, 20);
  Draw(1, 20);
  Draw(2, 21);
  Draw(5, 22);
  v1::RowResult late = Run(old);
  ExpectError(late, Reason::kStaleStep, "step.rows[0].step_id");
  EXPECT_EQ(late.error().limit(), "> 5");
  ExpectStateIsThePlainSequences();
  EXPECT_EQ(worker_.MustOpen(Reopened(open_, 1)).last_step_id(), 5u);
}

TEST_F(SessionRetry, OneStepAtATime) {
  const v1::StreamRequest step = PeakStep(1, "a", 1, plain_, 20);
  worker_.Send(step);
  worker_.Send(PeakStep(2, "a", 1, plain_, 20));
  ExpectError(worker_.Results(2, 1).at(0), Reason::kStepInFlight, "step.rows[0].step_id");
  worker_.Send(PeakStep(3, "a", 2, plain_, 20));
  ExpectError(worker_.Results(3, 1).at(0), Reason::kStepInFlight, "step.rows[0].step_id");
  ExpectError(worker_.Open(Reopened(open_, 1)).error(), Reason::kStepInFlight, "open");
  engine_.fake().FinishAll();
  EXPECT_EQ(worker_.Results(1, 1).at(0).draw().token(), 20u);
  plain_.Append(20);
  Draw(2, 21);
  ExpectStateIsThePlainSequences();
}

TEST_F(SessionRetry, GapOrForeignHashNeedsHistory) {
  Draw(1, 20);
  PlainSequence ahead = plain_;
  ahead.Append(5);
  ExpectError(Run(PeakStep(1, "a", 2, ahead, 20)), Reason::kHistoryRequired, "step.rows[0].position");
  PlainSequence behind = plain_;
  behind.TruncateTo(plain_.position() - 1);
  ExpectError(Run(PeakStep(2, "a", 2, behind, 20)), Reason::kHistoryRequired, "step.rows[0].position");
  PlainSequence other = behind;
  other.Append(21);
  ExpectError(Run(PeakStep(3, "a", 2, other, 20)), Reason::kHistoryRequired, "step.rows[0].history_hash");
  ExpectStateIsThePlainSequences();
  Draw(2, 21);
}

// Answers to a worker that lost its place, and its way back.
TEST_F(SessionRetry, ReplayedHistoryRepairsSequence) {
  PlainSequence other = plain_;
  other.Append(40);
  ExpectError(Run(PeakStep(1, "a", 1, other, 20)), Reason::kHistoryRequired, "step.rows[0].position");
  v1::OpenSequence replay = open_;
  replay.mutable_history()->add_tokens(40);
  const v1::OpenedState state = worker_.MustOpen(replay);
  EXPECT_EQ(state.position(), 4u);
  EXPECT_EQ(state.history_hash(), other.hash());
  EXPECT_EQ(Run(PeakStep(2, "a", 1, other, 20)).draw().token(), 20u);
  EXPECT_EQ(engine_.observer().count(Counter::kReplayedTokens), 3u + 4u);
}

TEST_F(SessionRetry, ForcedTokenReplacesDrawnOne) {
  Draw(1, 20);
  plain_.TruncateTo(plain_.position() - 1);
  const uint32_t kept = plain_.position();
  plain_.Append(50);
  plain_.Append(51);
  StepBuilder step(1, kStatefulVocabulary);
  v1::StepRow& row = AddPeak(&step, "a", 2, plain_, 21);
  row.set_truncate_to(kept);
  row.add_append_tokens(50);
  row.add_append_tokens(51);
  const v1::RowResult result = Run(step.Build());
  EXPECT_EQ(result.draw().token(), 21u) << result.ShortDebugString();
  plain_.Append(21);
  EXPECT_EQ(result.draw().history_hash(), plain_.hash());
  // The rewritten step again: the rewrites are not applied twice.
  v1::StreamRequest again = step.Build();
  again.mutable_step()->set_batch_id(2);
  EXPECT_EQ(Run(again).SerializeAsString(), result.SerializeAsString());
  ExpectStateIsThePlainSequences();
}

TEST_F(SessionRetry, TruncationIsWithinPromptAndOutput) {
  Draw(1, 20);
  plain_.TruncateTo(2);
  StepBuilder step(1, kStatefulVocabulary);
  AddPeak(&step, "a", 2, plain_, 21).set_truncate_to(2);
  EXPECT_EQ(Run(step.Build()).draw().token(), 21u);
  plain_.TruncateTo(1);
  StepBuilder deeper(2, kStatefulVocabulary);
  AddPeak(&deeper, "a", 3, plain_, 21).set_truncate_to(1);
  EXPECT_EQ(Run(deeper.Build()).draw().token(), 21u);
  StepBuilder beyond(3, kStatefulVocabulary);
  AddPeak(&beyond, "a", 4, plain_, 21).set_truncate_to(100);
  const v1::RowResult refused = Run(beyond.Build());
  ExpectError(refused, Reason::kHistoryRequired, "step.rows[0].truncate_to");
  EXPECT_EQ(refused.error().limit(), "0..2");
}

TEST_F(SessionRetry, OtherSaltDrawsAnew) {
  // Flat logits, so that the salt decides.
  const std::string flat = F32Bytes(std::vector<float>(kStatefulVocabulary, 0.0f));
  std::vector<uint32_t> tokens;
  const uint32_t position = plain_.position();
  for (uint32_t salt = 0; salt < 8; ++salt) {
    StepBuilder step(1 + salt, kStatefulVocabulary);
    v1::StepRow& row = step.AddRow("a", 1 + salt, position, flat);
    row.set_history_hash(plain_.hash());
    row.set_truncate_to(position);
    row.set_draw_salt(salt);
    const v1::DrawResult drawn = Run(step.Build()).draw();
    EXPECT_EQ(drawn.token(), plain_.Draw({.logits = flat, .draw_salt = salt}).token());
    tokens.push_back(drawn.token());
  }
  EXPECT_NE(tokens, std::vector<uint32_t>(8, tokens[0]));
}

class SessionFailure : public SessionRetry {
 protected:
  // A rewriting step. Nothing of it may remain when it fails.
  v1::StreamRequest RewritingStep(uint64_t step_id, std::string logits) {
    PlainSequence rewritten = plain_;
    rewritten.TruncateTo(2);
    rewritten.Append(60);
    StepBuilder step(++batch_id_, kStatefulVocabulary);
    v1::StepRow& row = step.AddRow("a", step_id, rewritten.position(), logits);
    row.set_history_hash(rewritten.hash());
    row.set_truncate_to(2);
    row.add_append_tokens(60);
    return step.Build();
  }
  v1::StreamRequest RewritingStep(uint64_t step_id) { return RewritingStep(step_id, F32Peak(kStatefulVocabulary, 20)); }
  void ExpectUntouched() {
    ExpectStateIsThePlainSequences();
    Draw(1, 30);
  }
};

TEST_F(SessionFailure, UnusableLogitsKeepState) {
  std::vector<float> logits(kStatefulVocabulary, std::numeric_limits<float>::quiet_NaN());
  ExpectError(Run(RewritingStep(1, F32Bytes(logits))), Reason::kLogitNan, "step.rows[0]");
  ExpectUntouched();
}

TEST_F(SessionFailure, DeviceFailureKeepsState) {
  worker_.Send(RewritingStep(1));
  engine_.fake().Fail(absl::UnavailableError("gone"));
  const auto results = worker_.Results(batch_id_, 1);
  ExpectError(results.at(0), Reason::kDeviceFailed, "");
  EXPECT_TRUE(results.at(0).error().has_retry_after());
  ExpectUntouched();
}

// The device has one batch at a time, so that a second step waits.
TEST_F(SessionFailure, CancelledStepKeepsState) {
  worker_.MustOpen(StatefulOpen("b", 1));
  worker_.Send(PeakStep(1, "b", 1, PlainSequence(StatefulOpen("b", 1)), 5));
  worker_.Send(RewritingStep(1));
  worker_.Send(testing::MakeCancel(batch_id_));
  ExpectError(worker_.Results(batch_id_, 1).at(0), Reason::kStepCancelled, "");
  worker_.Send(testing::MakeCancel(1));
  worker_.Send(testing::MakeCancel(12345));
  engine_.fake().FinishAll();
  EXPECT_EQ(worker_.Results(1, 1).at(0).draw().token(), 5u) << "what runs is answered";
  ExpectUntouched();
}

TEST_F(SessionFailure, StepPastDeadlineKeepsState) {
  worker_.MustOpen(StatefulOpen("b", 1));
  worker_.Send(PeakStep(1, "b", 1, PlainSequence(StatefulOpen("b", 1)), 5));
  v1::StreamRequest step = RewritingStep(1);
  step.mutable_step()->mutable_timeout()->set_seconds(1);
  worker_.Send(step);
  engine_.clock().Advance(absl::Milliseconds(999));
  engine_->batcher().Sweep();
  EXPECT_EQ(engine_->batcher().queued_rows(), 1u);
  engine_.clock().Advance(absl::Milliseconds(1));
  engine_->batcher().Sweep();
  ExpectError(worker_.Results(batch_id_, 1).at(0), Reason::kDeadlinePassed, "step.timeout");
  engine_.fake().FinishAll();
  worker_.Results(1, 1);
  ExpectUntouched();
}

TEST(SessionOverload, FullQueueRefusesStepAndKeepsState) {
  TestEngine engine = TestEngine::OnFake({.max_queued_rows = 2});
  StreamWorker worker(engine.get());
  std::vector<v1::OpenSequence> opens;
  StepBuilder step(1, kStatefulVocabulary);
  for (const char* name : {"a", "b", "c"}) {
    opens.push_back(StatefulOpen(name, 1));
    worker.MustOpen(opens.back());
    AddPeak(&step, name, 1, PlainSequence(opens.back()), 20);
  }
  worker.Send(step.Build());
  const v1::Error error = worker.StepError(1);
  ExpectError(error, Reason::kOverloaded, "step");
  EXPECT_TRUE(error.has_retry_after());
  EXPECT_TRUE(worker.IsIdle());
  for (const v1::OpenSequence& open : opens) {
    const PlainSequence plain(open);
    EXPECT_EQ(worker.MustOpen(Reopened(open, 1)).history_hash(), plain.hash());
    worker.Send(PeakStep(2, open.request_id(), 1, plain, 21));
    engine.fake().FinishAll();
    EXPECT_EQ(worker.Results(2, 1).at(0).draw().token(), 21u) << "the same step later";
  }
}

// They have left when the batcher refuses the rest.
TEST(SessionOverload, RepeatedRowsAreAnsweredAllTheSame) {
  TestEngine engine = TestEngine::OnFake({.max_queued_rows = 1});
  StreamWorker worker(engine.get());
  StepBuilder step(2, kStatefulVocabulary);
  for (const char* name : {"a", "b", "c"}) {
    const v1::OpenSequence open = StatefulOpen(name, 1);
    worker.MustOpen(open);
    AddPeak(&step, name, 1, PlainSequence(open), 20);
    if (name[0] != 'a') continue;
    worker.Send(PeakStep(1, name, 1, PlainSequence(open), 20));
    engine.fake().FinishAll();
    EXPECT_EQ(worker.Results(1, 1).size(), 1u);
  }
  worker.Send(step.Build());
  const std::vector<v1::RowResult> results = worker.Results(2, 3);
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[0].draw().token(), 20u);
  for (const size_t row : {1u, 2u}) ExpectError(results[row], Reason::kOverloaded, "step");
  EXPECT_TRUE(worker.IsIdle());
}

}  // namespace
}  // namespace sortition::service::session_retry_test
