// Shards of ranks that number their streams: an answer that a rank lost is repeated, at any progress of the others.
#include <random>
#include <thread>

#include "service/text/cost.h"
#include "tests/shard/shards_fixture.h"
#include "tests/support/scale.h"

namespace sortition::service::session_ranks_test {
namespace {

class SessionRanks : public SessionShards {
 protected:
  v1::StreamRequest Numbered(uint64_t batch_id, uint64_t step_id, uint32_t index, uint64_t epoch = 1) const {
    v1::StreamRequest request = ShardStep(batch_id, index);
    request.mutable_step()->mutable_logits()->mutable_shard()->set_epoch(epoch);
    for (v1::StepRow& row : *request.mutable_step()->mutable_rows()) row.set_step_id(step_id);
    return request;
  }
  // Brings an answer to row `row` of SmallShard, of about 200 KB.
  void BringLong(uint32_t worker, uint32_t row) {
    v1::StreamRequest bring;
    *bring.mutable_bring_answer()->mutable_asked() = SmallShard(1, 1, row + 1).step().rows(static_cast<int>(row));
    bring.mutable_bring_answer()->mutable_result()->set_step_id(1);
    bring.mutable_bring_answer()->mutable_result()->mutable_draw()->mutable_kept_tokens()->Resize(kLong, row);
    workers_[worker]->Begin(bring);
  }
  // Has the rest of a message taken, which is of answers of BringLong. Returns its pieces.
  int TakePieces(uint32_t worker) {
    Session& session = workers_[worker]->session();
    for (int pieces = 1;; ++pieces) {
      if (session.back_off() == absl::ZeroDuration()) return pieces;
      const uint64_t before = engine_->ledger().work();
      session.Continue();
      EXPECT_LE(engine_->ledger().work() - before, kPieceWork + 2 * price::kAnswerByte * kLong);
    }
  }
  static constexpr int kLong = 200'000;  // tokens of a byte
  std::vector<std::string> DrawsOf(uint32_t worker, uint64_t batch_id) {
    std::vector<std::string> draws;
    for (const v1::RowResult& row : workers_[worker]->Results(batch_id, 2)) {
      EXPECT_TRUE(row.has_draw()) << row.ShortDebugString();
      draws.push_back(row.draw().SerializeAsString());
    }
    return draws;
  }
};

// The other ranks have advanced and do not send the shard again.
TEST_F(SessionRanks, RankGetsLostAnswerAgain) {
  for (uint32_t i = 0; i < kShards; ++i) workers_[i]->Send(Numbered(1, 5, i));
  const std::vector<std::string> draws = Draws(1);
  for (const uint32_t lost : {1, 0, 2}) {
    Reconnect(lost);
    workers_[lost]->Send(Numbered(1, 5, lost, 2 + lost));
    EXPECT_EQ(DrawsOf(lost, 1), draws);
    EXPECT_TRUE(workers_[lost]->IsIdle());
  }
  EXPECT_EQ(engine_->shards().kept(), 2u);
  EXPECT_EQ(engine_->shards().waiting(), 0u);
  // A different step with the same id is not answered by it.
  v1::StreamRequest other = Numbered(2, 5, 1, 9);
  for (v1::StepRow& row : *other.mutable_step()->mutable_rows()) row.set_draw_salt(1);
  workers_[1]->Send(other);
  EXPECT_EQ(engine_->shards().waiting(), 2u);
}

TEST_F(SessionRanks, BroughtAnswerAnswersWaitingRank) {
  for (uint32_t i = 0; i < kShards; ++i) workers_[i]->Send(Numbered(1, 5, i));
  std::vector<v1::RowResult> answers = workers_[2]->Results(1, 2);
  TestEngine restarted = TestEngine::OnCpu();
  StreamWorker behind(restarted.get());
  StreamWorker ahead(restarted.get());
  behind.Send(Numbered(1, 5, 1));
  EXPECT_EQ(restarted->shards().waiting(), 2u);
  for (int row = 0; row < 2; ++row) {
    v1::StreamRequest bring;
    *bring.mutable_bring_answer()->mutable_asked() = Numbered(1, 5, 2).step().rows(row);
    *bring.mutable_bring_answer()->mutable_result() = answers[static_cast<size_t>(row)];
    ahead.Send(bring);
    EXPECT_EQ(restarted->shards().waiting(), 1u - static_cast<size_t>(row));
  }
  const std::vector<v1::RowResult> got = behind.Results(1, 2);
  for (size_t row = 0; row < 2; ++row) {
    EXPECT_EQ(got.at(row).draw().SerializeAsString(), answers[row].draw().SerializeAsString());
  }
  EXPECT_TRUE(behind.IsIdle());

  v1::StreamRequest wrong;
  wrong.mutable_bring_answer()->mutable_asked()->set_request_id("a");
  ahead.Send(wrong);
  ExpectError(ahead.Rejected().error(), Reason::kContradiction, "bring_answer.result");
  wrong.mutable_bring_answer()->mutable_asked()->clear_request_id();
  ahead.Send(wrong);
  ExpectError(ahead.Rejected().error(), Reason::kMissingField, "bring_answer.asked.request_id");
  wrong.mutable_bring_answer()->mutable_asked()->set_request_id("a");
  wrong.mutable_bring_answer()->mutable_result()->mutable_draw()->set_checkpoint(std::string(1 << 20, 'x'));
  ahead.Send(wrong);
  ExpectError(ahead.Rejected().error(), Reason::kTooMany, "bring_answer.result");
}

TEST_F(SessionRanks, KeptAnswersAreSentInPieces) {
  constexpr uint32_t kRows = 40;
  for (uint32_t row = 0; row < kRows; ++row) BringLong(2, row);
  ASSERT_EQ(engine_->shards().kept(), kRows);
  for (const uint32_t index : {0u, 1u}) {
    const uint64_t before = engine_->ledger().work();
    workers_[index]->Begin(SmallShard(1, index, kRows));
    EXPECT_FALSE(workers_[index]->session().Idle());
    EXPECT_GT(TakePieces(index), 4);
    EXPECT_GE(engine_->ledger().work() - before, kRows * kLong * price::kAnswerByte);
    const auto results = workers_[index]->Results(1, kRows);
    ASSERT_EQ(results.size(), kRows);
    for (uint32_t row = 0; row < kRows; ++row) {
      EXPECT_EQ(results[row].draw().kept_tokens_size(), kLong);
      EXPECT_EQ(results[row].draw().kept_tokens(0), row);
    }
    EXPECT_TRUE(workers_[index]->IsIdle());
  }
}

TEST_F(SessionRanks, BroughtAnswerIsSentInPieces) {
  constexpr uint32_t kWaiting = 40;
  for (uint32_t index = 1; index <= kWaiting; ++index) workers_[1]->Send(SmallShard(index, index, 2));
  BringLong(2, 0);
  EXPECT_EQ(engine_->shards().waiting(), 1u);
  EXPECT_GT(TakePieces(2), 4);
  for (uint32_t index = 1; index <= kWaiting; ++index) {
    const auto results = workers_[1]->Results(index, 1);
    ASSERT_EQ(results.size(), 1u);
    EXPECT_EQ(results[0].draw().kept_tokens_size(), kLong);
  }
  EXPECT_FALSE(workers_[1]->IsIdle()) << "the other row waits";
}

// It is read in one piece, and checked, encoded and kept in another.
TEST_F(SessionRanks, LongBroughtAnswerPausesAfterReading) {
  constexpr int kLonger = 300'000;
  v1::StreamRequest bring;
  *bring.mutable_bring_answer()->mutable_asked() = SmallShard(1, 1, 1).step().rows(0);
  v1::RowResult& result = *bring.mutable_bring_answer()->mutable_result();
  result.set_step_id(1);
  result.mutable_draw()->mutable_kept_tokens()->Resize(kLonger, 1);
  workers_[1]->Send(SmallShard(1, 1, 1));
  workers_[2]->Begin(bring);
  EXPECT_GT(workers_[2]->session().back_off(), absl::ZeroDuration());
  EXPECT_EQ(engine_->shards().kept(), 0u);
  while (workers_[2]->session().back_off() > absl::ZeroDuration()) workers_[2]->session().Continue();
  EXPECT_EQ(engine_->shards().kept(), 1u);
  EXPECT_LE(engine_->shards().kept_bytes(), result.ByteSizeLong() + 1024) << "held as on the wire";
  EXPECT_EQ(workers_[1]->Results(1, 1).at(0).draw().kept_tokens_size(), kLonger);
}

// The other streams' shards are answered though the stream that owes them ends.
TEST_F(SessionRanks, OwedAnswersAreSentAtTheStreamsEnd) {
  constexpr uint32_t kWaiting = 40;
  for (uint32_t index = 1; index <= kWaiting; ++index) workers_[1]->Send(SmallShard(index, index, 1));
  BringLong(2, 0);
  EXPECT_GT(workers_[2]->session().back_off(), absl::ZeroDuration());
  workers_[2]->Disconnect();
  for (uint32_t index = 1; index <= kWaiting; ++index) EXPECT_EQ(workers_[1]->Results(index, 1).size(), 1u);
  EXPECT_TRUE(workers_[1]->IsIdle());
}

// A regression: the counts of an answer were read from it, and a worker may bring one that no server makes.
TEST_F(SessionRanks, BroughtAnswerMayBeStrange) {
  TestEngine restarted = TestEngine::OnCpu();
  StreamWorker behind(restarted.get());
  StreamWorker ahead(restarted.get());
  behind.Send(Numbered(1, 5, 1));
  for (int row = 0; row < 2; ++row) {
    v1::StreamRequest bring;
    *bring.mutable_bring_answer()->mutable_asked() = Numbered(1, 5, 2).step().rows(row);
    v1::RowResult& result = *bring.mutable_bring_answer()->mutable_result();
    result.set_step_id(5);
    result.mutable_draw()->set_phase(1u << 30);
    ahead.Send(bring);
  }
  const std::vector<v1::RowResult> got = behind.Results(1, 2);
  EXPECT_EQ(got.at(0).draw().phase(), 1u << 30);
  EXPECT_TRUE(behind.IsIdle());
}

TEST_F(SessionRanks, BroughtAnswerIsOfItsTask) {
  v1::StreamRequest bring;
  v1::BringAnswer& answer = *bring.mutable_bring_answer();
  *answer.mutable_asked() = Numbered(1, 5, 2).step().rows(0);
  answer.mutable_result()->set_step_id(5);
  answer.mutable_result()->mutable_verify()->add_positions();
  workers_[0]->Send(bring);
  ExpectError(workers_[0]->Rejected().error(), Reason::kContradiction, "bring_answer.result");
  answer.mutable_asked()->mutable_verify_draft();
  answer.mutable_result()->mutable_verify()->clear_positions();
  workers_[0]->Send(bring);
  ExpectError(workers_[0]->Rejected().error(), Reason::kContradiction, "bring_answer.result");
  for (uint32_t i = 0; i < kMaxDraftTokens + 2; ++i) answer.mutable_result()->mutable_verify()->add_positions();
  workers_[0]->Send(bring);
  ExpectError(workers_[0]->Rejected().error(), Reason::kTooMany, "bring_answer.result.positions");
}

// A regression: the sequence stayed in flight and could never be evicted.
TEST_F(SessionRanks, BroughtAnswerFreesItsSequence) {
  const uint64_t hash = OpenStateful(2);
  v1::StreamRequest first = Numbered(1, 5, 0);
  for (v1::StepRow& row : *first.mutable_step()->mutable_rows()) row.set_history_hash(hash);
  workers_[0]->Send(first);
  ASSERT_EQ(engine_->shards().waiting(), 2u);
  EXPECT_EQ(engine_->sequences().ForgetAll("default").busy, 2u);
  for (int row = 0; row < 2; ++row) {
    v1::StreamRequest bring;
    *bring.mutable_bring_answer()->mutable_asked() = Numbered(1, 5, 2).step().rows(row);
    bring.mutable_bring_answer()->mutable_result()->set_step_id(5);
    bring.mutable_bring_answer()->mutable_result()->mutable_draw()->set_token(3);
    workers_[2]->Send(bring);
  }
  EXPECT_EQ(DrawsOf(0, 1).size(), 2u);
  EXPECT_TRUE(workers_[0]->IsIdle());
  const SequenceTable::Forgotten forgotten = engine_->sequences().ForgetAll("default");
  EXPECT_EQ(forgotten.busy, 0u);
  EXPECT_EQ(forgotten.forgotten, 2u);
}

TEST_F(SessionRanks, LaterStreamsShardReplacesEarlier) {
  workers_[1]->Send(Numbered(1, 5, 1, 7));
  StreamWorker later(engine_.get());
  later.Send(Numbered(4, 5, 1, 8));
  ExpectRowErrors(1, 1, 2, Reason::kSuperseded, "step.logits.shard.epoch");
  ExpectRowsRefused(1, Numbered(2, 5, 1, 7), Reason::kSuperseded, "step.logits.shard.epoch");
  StreamWorker twin(engine_.get());
  twin.Send(Numbered(1, 5, 1, 8));
  ExpectError(twin.Results(1, 2).at(0).error(), Reason::kContradiction, "step.logits.shard.index");
  // On one stream the later shard replaces the earlier one.
  later.Send(Numbered(5, 5, 1, 8));
  EXPECT_EQ(later.Results(4, 2).at(0).error().reason(), v1::STEP_CANCELLED);
  workers_[0]->Send(Numbered(1, 5, 0));
  workers_[2]->Send(Numbered(1, 5, 2));
  EXPECT_EQ(later.Results(5, 2).at(0).draw().SerializeAsString(), DrawsOf(0, 1).at(0));
}

TEST_F(SessionRanks, AnswersAreKeptUntilAllRanksClose) {
  for (uint32_t i = 0; i < kShards; ++i) workers_[i]->Send(Numbered(1, 5, i));
  const std::vector<std::string> draws = Draws(1);
  const auto close = [&](uint32_t index) {
    for (const char* name : {"a", "b"}) {
      v1::StreamRequest request = testing::MakeClose(name, 1);
      request.mutable_close()->set_shard_index(index);
      workers_[index]->Send(request);
    }
  };
  close(0);
  close(2);
  EXPECT_EQ(engine_->shards().kept(), 2u);
  workers_[1]->Send(Numbered(2, 5, 1));
  EXPECT_EQ(DrawsOf(1, 2), draws);
  // Rank 2 has closed the sequence: its next shard belongs to another sequence of this name.
  workers_[2]->Send(Numbered(2, 5, 2));
  EXPECT_EQ(engine_->shards().waiting(), 2u);
  close(1);
  EXPECT_EQ(engine_->shards().kept(), 0u);
}

// Else a kept answer would grow by each index that a worker thinks of.
TEST_F(SessionRanks, CloseByInvalidRankIsRefused) {
  v1::StreamRequest request = testing::MakeClose("a", 1);
  request.mutable_close()->set_shard_index(kMaxShards);
  ExpectError(workers_[0]->Close(request).error(), Reason::kOutOfRange, "close.shard_index");
}

TEST_F(SessionRanks, AnswersExpire) {
  for (uint32_t i = 0; i < kShards; ++i) workers_[i]->Send(Numbered(1, 5, i));
  Draws(1);
  Pass(engine_->limits().sequence_ttl - absl::Seconds(1));
  EXPECT_EQ(engine_->shards().kept(), 2u);
  Pass(absl::Seconds(1));
  EXPECT_EQ(engine_->shards().kept(), 0u);
}

// The worker opens the sequence and repeats its shard; the others' shards wait for it.
TEST_F(SessionRanks, ReopenableRefusalGoesToShardZeroOnly) {
  const uint64_t hash = OpenStateful(2);
  const auto send = [&](uint64_t batch, uint32_t index, uint64_t said) {
    v1::StreamRequest request = Numbered(batch, 1, index);
    for (v1::StepRow& row : *request.mutable_step()->mutable_rows()) row.set_history_hash(said);
    workers_[index]->Send(request);
  };
  for (const uint32_t rank : {1, 2}) send(1, rank, hash);
  send(1, 0, 7);
  EXPECT_EQ(workers_[0]->Results(1, 2).at(0).error().reason(), v1::HISTORY_REQUIRED);
  EXPECT_EQ(engine_->shards().waiting(), 2u);
  send(2, 0, OpenStateful(3));
  const std::vector<std::string> draws = DrawsOf(0, 2);
  for (const uint32_t rank : {1, 2}) EXPECT_EQ(DrawsOf(rank, 1), draws);
  // Rank 0 restarts and opens with the history that it knows: the answer is not drawn again.
  Reconnect(0);
  OpenStateful(4);
  send(1, 0, hash);
  EXPECT_EQ(DrawsOf(0, 1), draws);
}

// All ranks are told of errors of the row itself.
TEST_F(SessionRanks, OtherRefusalsOfShardZeroGoToAll) {
  for (uint32_t i = 0; i < kShards; ++i) {
    v1::StreamRequest request = Numbered(1, 5, i);
    for (v1::StepRow& row : *request.mutable_step()->mutable_rows()) row.set_draw_salt(70000);
    workers_[i]->Send(request);
  }
  for (uint32_t i = 0; i < kShards; ++i) ExpectRowErrors(i, 1, 2, Reason::kOutOfRange, "step.rows[0].draw_salt");
  EXPECT_EQ(engine_->shards().kept(), 0u);
}

TEST_F(SessionRanks, ShutdownReturnsWaitingShards) {
  for (const uint32_t rank : {0, 1}) workers_[rank]->Send(Numbered(1, 5, rank));
  workers_[1]->session().Drain(v1::DrainingNotice::CAUSE_STREAM_AGE, absl::Seconds(1));
  EXPECT_EQ(engine_->shards().waiting(), 2u) << "the others go on";
  for (const uint32_t rank : {0, 2})
    workers_[rank]->session().Drain(v1::DrainingNotice::CAUSE_SHUTDOWN, absl::Seconds(1));
  ExpectRowErrors(0, 1, 2, Reason::kDraining, "step");
  EXPECT_TRUE(workers_[0]->IsIdle());
  ExpectRefused(2, Numbered(1, 5, 2), Reason::kDraining, "step");
}

TEST_F(SessionRanks, ShutdownReturnsShardsOfAgedStream) {
  workers_[1]->Send(Numbered(1, 5, 1));
  workers_[1]->session().Drain(v1::DrainingNotice::CAUSE_STREAM_AGE, absl::Seconds(1));
  EXPECT_EQ(engine_->shards().waiting(), 2u) << "the others may still come";
  workers_[1]->session().Drain(v1::DrainingNotice::CAUSE_SHUTDOWN, absl::Seconds(1));
  EXPECT_EQ(engine_->shards().waiting(), 0u);
  ExpectRowErrors(1, 1, 2, Reason::kDraining, "step");
}

// Each rank loses its stream at random, with or without the answer, and repeats its shard until it has the answer.
TEST_F(SessionRanks, RandomStreamLossChangesNoAnswer) {
  const uint32_t steps = static_cast<uint32_t>(testing::Scaled(150));
  std::vector<std::vector<std::string>> got(kShards);
  const auto run = [&](uint32_t rank) {
    std::mt19937_64 random(rank + 1);
    uint64_t epoch = 1;
    const auto reconnect = [&] {
      Reconnect(rank);
      ++epoch;
      if (rank != 0) return;
      for (const char* name : {"a", "b"}) {
        v1::OpenSequence open = MakeOpen(name, epoch, kShardedVocabulary);
        open.set_live_vocabulary_size(990);
        open.mutable_parameters()->mutable_raw_logprobs()->set_top(5);
        workers_[0]->MustOpen(open);
      }
    };
    reconnect();  // alike from the first step on
    uint64_t batch = 0;
    for (uint32_t step = 1; step <= steps; ++step) {
      for (bool answered = false; !answered;) {
        v1::StreamRequest request = Numbered(++batch, step, rank, epoch);
        for (v1::StepRow& row : *request.mutable_step()->mutable_rows()) row.set_position(step);
        workers_[rank]->Send(request);
        if (random() % 8 == 0) {
          reconnect();
          continue;
        }
        const std::vector<v1::RowResult> results = workers_[rank]->Results(batch, 2);
        ASSERT_EQ(results.size(), 2u);
        workers_[rank]->LetLeave();
        answered = true;
        for (const v1::RowResult& row : results) {
          // The stream of shard 0 ended during the row.
          if (row.has_error()) {
            EXPECT_EQ(row.error().reason(), v1::STEP_CANCELLED) << row.ShortDebugString();
            answered = false;
          }
        }
        if (answered && random() % 8 == 0) {
          reconnect();
          answered = false;
        }
        if (answered)
          got[rank].push_back(results[0].draw().SerializeAsString() + results[1].draw().SerializeAsString());
      }
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < kShards; ++rank) threads.emplace_back(run, rank);
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<std::string>& answers : got) EXPECT_EQ(answers, got[0]);
  EXPECT_EQ(got[0].size(), steps);
  EXPECT_EQ(engine_->shards().waiting(), 0u);
}

}  // namespace
}  // namespace sortition::service::session_ranks_test
