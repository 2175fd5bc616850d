// The right to step a sequence: epochs, streams that compete, streams that end, and tenants that stay apart.

#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "tests/stream/stateful_stream.h"

namespace sortition::service::session_ownership_test {
namespace {

class SessionOwnership : public ::testing::Test {
 protected:
  v1::RowResult Run(StreamWorker& worker, const v1::StreamRequest& step) {
    worker.Send(step);
    engine_.fake().FinishAll();
    const auto results = worker.Results(step.step().batch_id(), 1);
    return results.empty() ? v1::RowResult() : results[0];
  }

  // Closes "a".
  static v1::SequenceClosed Close(StreamWorker& worker, std::optional<uint64_t> epoch) {
    v1::StreamRequest request = testing::MakeClose("a", epoch.value_or(0));
    if (!epoch) request.mutable_close()->clear_epoch();
    return worker.Close(request);
  }

  const v1::OpenSequence open_ = StatefulOpen("a", 5);
  PlainSequence plain_{open_};
  TestEngine engine_ = TestEngine::OnFake();
  StreamWorker first_{engine_.get()};
  StreamWorker second_{engine_.get()};
};

TEST_F(SessionOwnership, HigherEpochTakesSequence) {
  first_.MustOpen(open_);
  EXPECT_EQ(Run(first_, PeakStep(1, "a", 1, plain_, 20)).draw().token(), 20u);
  plain_.Append(20);
  const v1::OpenedState state = second_.MustOpen(Reopened(open_, 6));
  EXPECT_EQ(state.position(), plain_.position());
  EXPECT_EQ(state.history_hash(), plain_.hash());
  EXPECT_EQ(state.last_step_id(), 1u);

  v1::RowResult ghost = Run(first_, PeakStep(2, "a", 2, plain_, 21));
  ExpectError(ghost, Reason::kSuperseded, "");
  EXPECT_EQ(ghost.error().limit(), "> 6");
  EXPECT_EQ(Run(second_, PeakStep(1, "a", 2, plain_, 22)).draw().token(), 22u);
}

TEST_F(SessionOwnership, LostAnswerIsGivenToNewStream) {
  first_.MustOpen(open_);
  const v1::RowResult lost = Run(first_, PeakStep(1, "a", 1, plain_, 20));
  first_.Disconnect();
  second_.MustOpen(Reopened(open_, 6));
  EXPECT_EQ(Run(second_, PeakStep(9, "a", 1, plain_, 20)).SerializeAsString(), lost.SerializeAsString());
}

TEST_F(SessionOwnership, LowerAndEqualEpochsChangeNothing) {
  first_.MustOpen(open_);
  for (const uint64_t epoch : {0, 4, 5}) {
    for (v1::OpenSequence open : {StatefulOpen("a", epoch), Reopened(open_, epoch)}) {
      if (open.has_history()) open.mutable_history()->add_tokens(60);
      const v1::SequenceOpened refused = second_.Open(open);
      EXPECT_EQ(refused.epoch(), epoch);
      ExpectError(refused.error(), Reason::kSuperseded, "open.epoch");
      EXPECT_EQ(refused.error().limit(), "> 5");
    }
  }
  EXPECT_EQ(Run(first_, PeakStep(1, "a", 1, plain_, 20)).draw().token(), 20u);
  ExpectError(Run(second_, PeakStep(1, "a", 1, plain_, 20)), Reason::kUnknownSequence, "step.rows[0].request_id");
}

TEST_F(SessionOwnership, SameStreamMayOpenAgain) {
  first_.MustOpen(open_);
  first_.MustOpen(Reopened(open_, 5));
  first_.MustOpen(Reopened(open_, 8));
  ExpectError(first_.Open(Reopened(open_, 7)).error(), Reason::kSuperseded, "open.epoch");
  EXPECT_EQ(Run(first_, PeakStep(1, "a", 1, plain_, 20)).draw().token(), 20u);
}

// The loser's device may answer anything: the winner has continued from before that step.
TEST_F(SessionOwnership, LosersStepInFlightLeavesNoTrace) {
  first_.MustOpen(open_);
  first_.Send(PeakStep(1, "a", 1, plain_, 40));
  const v1::OpenedState state = second_.MustOpen(Reopened(open_, 6));
  EXPECT_EQ(state.position(), plain_.position());
  EXPECT_EQ(state.history_hash(), plain_.hash());
  second_.Send(PeakStep(1, "a", 1, plain_, 20));
  engine_.fake().FinishAll();
  ExpectError(first_.Results(1, 1).at(0), Reason::kSuperseded, "");
  EXPECT_EQ(second_.Results(1, 1).at(0).draw().token(), 20u);
  plain_.Append(20);
  EXPECT_EQ(second_.MustOpen(Reopened(open_, 6)).history_hash(), plain_.hash());
  EXPECT_TRUE(first_.IsIdle());
  EXPECT_TRUE(second_.IsIdle());
}

TEST_F(SessionOwnership, LosersRewritingStepIsReverted) {
  first_.MustOpen(open_);
  PlainSequence rewritten = plain_;
  rewritten.TruncateTo(2);
  rewritten.Append(50);
  StepBuilder step(1, kStatefulVocabulary);
  v1::StepRow& row = AddPeak(&step, "a", 1, rewritten, 40);
  row.set_truncate_to(2);
  row.add_append_tokens(50);
  first_.Send(step.Build());
  EXPECT_EQ(second_.MustOpen(Reopened(open_, 6)).history_hash(), plain_.hash());
  engine_.fake().FinishAll();
  ExpectError(first_.Results(1, 1).at(0), Reason::kSuperseded, "");
  EXPECT_EQ(Run(second_, PeakStep(1, "a", 1, plain_, 20)).draw().token(), 20u);
}

TEST_F(SessionOwnership, CloseDropsSequence) {
  first_.MustOpen(open_);
  EXPECT_EQ(engine_->sequences().live_sequences(), 1u);
  const v1::SequenceClosed closed = Close(first_, 5);
  EXPECT_EQ(closed.request_id(), "a");
  EXPECT_EQ(closed.epoch(), 5u);
  EXPECT_TRUE(closed.was_known());
  EXPECT_EQ(engine_->sequences().live_sequences(), 0u);
  ExpectError(Run(first_, PeakStep(1, "a", 1, plain_, 20)), Reason::kUnknownSequence, "step.rows[0].request_id");
  ExpectError(second_.Open(Reopened(open_, 9)).error(), Reason::kHistoryRequired, "open.history");
}

TEST_F(SessionOwnership, CloseOfUnknownSequenceSaysSo) {
  const v1::SequenceClosed closed = Close(first_, 1);
  EXPECT_FALSE(closed.was_known());
  EXPECT_FALSE(closed.has_error());
}

TEST_F(SessionOwnership, CloseOfLowerEpochIsSuperseded) {
  first_.MustOpen(open_);
  second_.MustOpen(Reopened(open_, 6));
  for (StreamWorker* worker : {&first_, &second_}) {
    const v1::SequenceClosed late = Close(*worker, 5);
    EXPECT_FALSE(late.was_known());
    ExpectError(late.error(), Reason::kSuperseded, "close.epoch");
    EXPECT_EQ(late.error().limit(), ">= 6");
  }
  EXPECT_EQ(engine_->sequences().live_sequences(), 1u);
  EXPECT_EQ(Run(second_, PeakStep(1, "a", 1, plain_, 20)).draw().token(), 20u);
  // The first stream has nothing left of it.
  ExpectError(Run(first_, PeakStep(1, "a", 1, plain_, 20)), Reason::kUnknownSequence, "step.rows[0].request_id");
}

TEST_F(SessionOwnership, CloseOfHigherEpochCloses) {
  first_.MustOpen(open_);
  EXPECT_TRUE(Close(first_, 7).was_known());
  EXPECT_EQ(engine_->sequences().live_sequences(), 0u);
  ExpectError(Run(first_, PeakStep(1, "a", 1, plain_, 20)), Reason::kUnknownSequence, "step.rows[0].request_id");
}

// A worker that lost its stream together with the answer of its close sends the close again.
TEST_F(SessionOwnership, CloseOnAnotherStreamCloses) {
  first_.MustOpen(open_);
  first_.Disconnect();
  EXPECT_TRUE(Close(second_, 5).was_known());
  EXPECT_EQ(engine_->sequences().live_sequences(), 0u);
  EXPECT_FALSE(Close(second_, 5).was_known());
}

TEST_F(SessionOwnership, CloseWithoutEpochMeansTheStreamsOpen) {
  first_.MustOpen(open_);
  v1::SequenceClosed closed = Close(first_, std::nullopt);
  EXPECT_EQ(closed.epoch(), 5u);
  EXPECT_TRUE(closed.was_known());
  EXPECT_EQ(engine_->sequences().live_sequences(), 0u);
  // It ends no later incarnation either.
  first_.MustOpen(open_);
  second_.MustOpen(Reopened(open_, 6));
  closed = Close(first_, std::nullopt);
  ExpectError(closed.error(), Reason::kSuperseded, "close.epoch");
  EXPECT_EQ(engine_->sequences().live_sequences(), 1u);
}

TEST_F(SessionOwnership, CloseWithoutEpochOrOpenIsRefused) {
  first_.MustOpen(open_);
  ExpectError(Close(second_, std::nullopt).error(), Reason::kMissingField, "close.epoch");
  EXPECT_EQ(engine_->sequences().live_sequences(), 1u);
}

TEST_F(SessionOwnership, CloseOfStatelessIgnoresEpoch) {
  const v1::OpenSequence open = MakeOpen("a", 5, kStatefulVocabulary);
  for (const std::optional<uint64_t> epoch : {std::optional<uint64_t>(), std::optional<uint64_t>(1)}) {
    first_.MustOpen(open);
    EXPECT_TRUE(Close(first_, epoch).was_known());
  }
  EXPECT_FALSE(Close(first_, 5).was_known());
}

// A close of a former epoch that comes between the pieces of a later epoch's history.
TEST_F(SessionOwnership, LateCloseDropsNoLaterHistory) {
  v1::OpenSequence piece = open_;
  piece.mutable_history()->set_continues(true);
  first_.Send(testing::Message(piece));
  EXPECT_FALSE(Close(first_, 4).was_known());
  piece.mutable_history()->set_continues(false);
  piece.mutable_history()->set_offset(3);
  EXPECT_EQ(first_.MustOpen(piece).position(), 6u);
  piece.mutable_history()->set_continues(true);
  piece.mutable_history()->set_offset(0);
  first_.Send(testing::Message(piece));
  EXPECT_TRUE(Close(first_, 5).was_known());
  piece.mutable_history()->set_offset(3);
  piece.mutable_history()->set_continues(false);
  ExpectError(first_.Open(piece).error(), Reason::kContradiction, "open.history.offset");
}

TEST_F(SessionOwnership, CloseDuringStep) {
  first_.MustOpen(open_);
  first_.Send(PeakStep(1, "a", 1, plain_, 20));
  first_.Send(testing::MakeClose("a", 5));
  engine_.fake().FinishAll();
  ExpectError(first_.Results(1, 1).at(0), Reason::kStepCancelled, "");
  EXPECT_EQ(engine_->sequences().live_sequences(), 0u);
  EXPECT_EQ(engine_->sequences().state_bytes(), 0u);
  EXPECT_TRUE(first_.IsIdle());
}

TEST_F(SessionOwnership, CloseDuringFailingStepCancelsIt) {
  first_.MustOpen(open_);
  StepBuilder step(1, kStatefulVocabulary);
  const std::vector<float> none(kStatefulVocabulary, std::numeric_limits<float>::quiet_NaN());
  step.AddRow("a", 1, plain_.position(), F32Bytes(none)).set_history_hash(plain_.hash());
  first_.Send(step.Build());
  first_.Send(testing::MakeClose("a", 5));
  engine_.fake().FinishAll();
  ExpectError(first_.Results(1, 1).at(0), Reason::kStepCancelled, "");
}

TEST_F(SessionOwnership, TenantsAndWorkerSessionsAreApart) {
  first_.MustOpen(open_);
  StreamWorker::Options other_identity;
  other_identity.tenant = "other";
  StreamWorker other(engine_.get(), other_identity);
  StreamWorker::Options other_engine;
  other_engine.worker_session = "other";
  StreamWorker neighbour(engine_.get(), other_engine);
  for (StreamWorker* stranger : {&other, &neighbour}) {
    ExpectError(stranger->Open(Reopened(open_, 100)).error(), Reason::kHistoryRequired, "open.history");
    v1::OpenSequence theirs = StatefulOpen("a", 100);
    theirs.mutable_history()->add_tokens(63);
    stranger->MustOpen(theirs);
    stranger->Send(testing::MakeClose("a", 100));
  }
  EXPECT_EQ(Run(first_, PeakStep(1, "a", 1, plain_, 20)).draw().token(), 20u);
}

TEST_F(SessionOwnership, DrainFinishesStepsAndRefusesNew) {
  first_.MustOpen(open_);
  first_.Send(PeakStep(1, "a", 1, plain_, 20));
  first_.session().Drain(v1::DrainingNotice::CAUSE_STREAM_AGE, absl::Milliseconds(1500));
  first_.session().Drain(v1::DrainingNotice::CAUSE_SHUTDOWN, absl::Seconds(9));
  const auto notice = first_.Await([](const auto& message) { return message.has_draining(); });
  EXPECT_EQ(notice->draining().cause(), v1::DrainingNotice::CAUSE_STREAM_AGE);
  EXPECT_EQ(notice->draining().grace().seconds(), 1);
  EXPECT_EQ(notice->draining().grace().nanos(), 500'000'000);
  EXPECT_FALSE(first_.sink().Take([](const auto& message) { return message.has_draining(); }).has_value());

  first_.Send(PeakStep(2, "a", 2, plain_, 20));
  const v1::Error error = first_.StepError(2);
  ExpectError(error, Reason::kDraining, "step");
  EXPECT_TRUE(error.has_retry_after());
  EXPECT_FALSE(first_.IsIdle());
  engine_.fake().FinishAll();
  EXPECT_EQ(first_.Results(1, 1).at(0).draw().token(), 20u);
  EXPECT_TRUE(first_.IsIdle());

  // The worker continues elsewhere.
  plain_.Append(20);
  second_.MustOpen(Reopened(open_, 6));
  EXPECT_EQ(Run(second_, PeakStep(1, "a", 2, plain_, 21)).draw().token(), 21u);
}

TEST_F(SessionOwnership, StreamEndsWithRowsInFlight) {
  first_.MustOpen(open_);
  first_.MustOpen(StatefulOpen("b", 5));
  first_.Send(PeakStep(1, "a", 1, plain_, 20));
  first_.Send(PeakStep(2, "b", 1, PlainSequence(StatefulOpen("b", 5)), 20));
  ASSERT_EQ(engine_.fake().held(), 1u);
  ASSERT_EQ(engine_->batcher().queued_rows(), 1u);
  first_.Disconnect();
  EXPECT_EQ(engine_->batcher().queued_rows(), 0u) << "what waits is cancelled";
  engine_.fake().FinishAll();
  // The answer was lost: the sequence is where it was, for any stream that takes it over.
  const v1::OpenedState state = second_.MustOpen(Reopened(open_, 6));
  EXPECT_EQ(state.history_hash(), plain_.hash());
  EXPECT_EQ(state.last_step_id(), 0u);
  EXPECT_EQ(Run(second_, PeakStep(1, "a", 1, plain_, 20)).draw().token(), 20u);
  EXPECT_EQ(engine_.observer().totals().tokens, 1u);
}

TEST_F(SessionOwnership, StreamClosedTwice) {
  first_.MustOpen(open_);
  first_.Send(PeakStep(1, "a", 1, plain_, 20));
  first_.session().Close();
  first_.session().Close();
  engine_.fake().FinishAll();
  first_.Disconnect();
}

// The session is gone and the engine goes while a device still holds a batch.
TEST_F(SessionOwnership, EngineWaitsForItsDevices) {
  TestEngine engine = TestEngine::OnCpu();
  auto worker = std::make_unique<StreamWorker>(engine.get());
  StepBuilder step(1, kStatefulVocabulary);
  for (int i = 0; i < 200; ++i) {
    const std::string name = absl::StrCat("s", i);
    worker->MustOpen(MakeOpen(name, 1, kStatefulVocabulary));
    step.AddRow(name, 1, 0, F32Peak(kStatefulVocabulary, 3));
  }
  worker->Send(step.Build());
  worker.reset();
}

}  // namespace
}  // namespace sortition::service::session_ownership_test
