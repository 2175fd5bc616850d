// Shards that wait for the others of their row: their limits, and no endless wait for a missing one.
#include <functional>

#include "gmock/gmock.h"
#include "service/text/cost.h"
#include "tests/shard/shards_fixture.h"

namespace sortition::service::session_waiting_shards_test {
namespace {

using ::testing::HasSubstr;

TEST_F(SessionShards, MissingShardTimesOutByName) {
  SendShards(1, {0, 1});
  Pass(engine_->limits().shard_wait - absl::Milliseconds(1));
  EXPECT_EQ(engine_->shards().waiting(), 2u);
  Pass(absl::Milliseconds(1));
  for (const uint32_t worker : {0, 1}) {
    const v1::Error error = ExpectRowErrors(worker, 1, 2, Reason::kDeadlinePassed, "step.logits.shard");
    EXPECT_EQ(error.limit(), "shard_wait 10000");
    EXPECT_THAT(error.message(), HasSubstr("not come: 2"));
    EXPECT_TRUE(workers_[worker]->IsIdle());
  }
  EXPECT_EQ(engine_->shards().waiting(), 0u);
  SendShards(1, {0, 1, 2});
  EXPECT_EQ(Draws(1).size(), 2u) << "the same step again";
}

TEST_F(SessionShards, TimeoutNamesFirstMissingShards) {
  workers_[0]->Send(SmallShard(1, 1, 1));
  Pass(engine_->limits().shard_wait);
  const v1::Error error = ExpectRowErrors(0, 1, 1, Reason::kDeadlinePassed, "step.logits.shard");
  EXPECT_EQ(error.message(), "of 256 shards these have not come: 0, 2, 3, 4, 5, 6, 7, 8, and 247 others");
}

// The thread that keeps the time has more to do.
TEST_F(SessionShards, FewRowsExpireAtOnce) {
  constexpr uint32_t kRows = ShardTable::kMostExpired + 100;
  workers_[0]->Send(SmallShard(1, 1, kRows));
  Pass(engine_->limits().shard_wait);
  EXPECT_EQ(engine_->shards().waiting(), 100u);
  Pass(absl::ZeroDuration());
  EXPECT_EQ(engine_->shards().waiting(), 0u);
  ExpectRowErrors(0, 1, kRows, Reason::kDeadlinePassed, "step.logits.shard");
}

TEST_F(SessionShards, ListsOfOtherShardsHaveLimits) {
  uint64_t batch_id = 0;
  const auto refused = [&](Reason reason, const std::string& field, const std::function<void(v1::StepRow*)>& change) {
    v1::StreamRequest shard = SmallShard(++batch_id, 1, 1);
    change(shard.mutable_step()->mutable_rows(0));
    ExpectRowsRefused(0, shard, reason, "step.rows[0]" + field);
    EXPECT_EQ(engine_->shards().waiting(), 0u);
  };
  refused(Reason::kTooMany, ".score.tokens", [](v1::StepRow* row) {
    for (uint32_t i = 0; i <= kMaxScoreTokens; ++i) row->mutable_score()->add_tokens(1);
  });
  refused(Reason::kTooMany, ".score.requested", [](v1::StepRow* row) {
    for (uint32_t i = 0; i <= kMaxScoreTokens; ++i) row->mutable_score()->add_requested();
  });
  refused(Reason::kTooMany, ".verify_draft.draft_tokens", [](v1::StepRow* row) {
    for (uint32_t i = 0; i <= kMaxDraftTokens; ++i) row->mutable_verify_draft()->add_draft_tokens(1);
  });
  refused(Reason::kTooMany, ".verify_tree.parents", [](v1::StepRow* row) {
    for (uint32_t i = 0; i <= kMaxDraftTokens; ++i) row->mutable_verify_tree()->add_parents(-1);
  });
  refused(Reason::kTooMany, ".verify_draft.sparse_probabilities[0].tokens", [&](v1::StepRow* row) {
    auto& tokens = *row->mutable_verify_draft()->add_sparse_probabilities()->mutable_tokens();
    tokens.Resize(static_cast<int>(engine_->limits().max_listed_tokens) + 1, 1);
  });
  refused(Reason::kTooMany, "", [&](v1::StepRow* row) {
    for (uint64_t work = 0; work <= kMaxPieceWork; work += price::kListedToken * 10'000) {
      row->mutable_verify_draft()->add_sparse_probabilities()->mutable_tokens()->Resize(10'000, 1);
    }
  });
}

// A token of one byte takes four once it is read.
TEST_F(SessionShards, WaitingListsCountAsTheyAreHeld) {
  v1::StreamRequest shard = SmallShard(1, 1, 8);
  for (v1::StepRow& row : *shard.mutable_step()->mutable_rows()) {
    row.mutable_score()->mutable_tokens()->Resize(kMaxScoreTokens, 1);
  }
  const uint64_t most = 2 * shard.ByteSizeLong();
  ASSERT_GT(shard.step().SpaceUsedLong(), most);
  TestEngine engine = TestEngine::OnCpu({.stream_unanswered_bytes = most});
  StreamWorker worker(engine.get());
  worker.Send(shard);
  EXPECT_EQ(engine->shards().waiting(), 8u);
  EXPECT_FALSE(worker.session().WantsFrames());
  engine.clock().Advance(engine->limits().shard_wait);
  engine->Sweep();
  EXPECT_TRUE(worker.IsIdle());
}

TEST_F(SessionShards, ShorterStepTimeoutHolds) {
  v1::StreamRequest request = ShardStep(1, 1);
  request.mutable_step()->mutable_timeout()->set_nanos(1'000'000);
  workers_[1]->Send(request);
  Pass(absl::Milliseconds(1));
  EXPECT_EQ(ExpectRowErrors(1, 1, 2, Reason::kDeadlinePassed, "step.logits.shard").limit(), "step.timeout");
}

// Its row is shard 0's: the other ranks that wait are told, too.
TEST_F(SessionShards, CancelRefusesWaitingRowsAtOnce) {
  SendShards(7, {1, 0});
  workers_[0]->Send(testing::MakeCancel(7));
  for (const uint32_t worker : {0, 1}) {
    ExpectRowErrors(worker, 7, 2, Reason::kStepCancelled, "");
    EXPECT_TRUE(workers_[worker]->IsIdle());
  }
  EXPECT_EQ(engine_->shards().waiting(), 0u);
  SendShards(7, {0, 1, 2});
  EXPECT_EQ(Draws(7).size(), 2u) << "the same step again";
}

TEST_F(SessionShards, CancelOfAnotherShardTakesItBackAlone) {
  SendShards(7, {0, 1});
  workers_[1]->Send(testing::MakeCancel(7));
  ExpectRowErrors(1, 7, 2, Reason::kStepCancelled, "");
  EXPECT_EQ(engine_->shards().waiting(), 2u);
  SendShards(7, {1, 2});
  EXPECT_EQ(Draws(7).size(), 2u);
}

TEST_F(SessionShards, CloseRefusesWaitingRowsAtOnce) {
  const uint64_t hash = OpenStateful(2, {"b"});
  for (const uint32_t shard : {0u, 1u}) {
    v1::StreamRequest request = ShardStep(1, shard);
    request.mutable_step()->mutable_rows(1)->set_history_hash(hash);
    workers_[shard]->Send(request);
  }
  workers_[0]->Send(testing::MakeClose("b", 2));
  EXPECT_EQ(engine_->shards().waiting(), 1u) << "the row of a waits on";
  EXPECT_EQ(engine_->sequences().live_sequences(), 0u);
  workers_[0]->Send(testing::MakeClose("a", 1));
  EXPECT_EQ(engine_->shards().waiting(), 0u);
  for (const uint32_t worker : {0, 1}) {
    ExpectRowErrors(worker, 1, 2, Reason::kStepCancelled, "");
    EXPECT_TRUE(workers_[worker]->IsIdle());
  }
}

// A rank that closes needs no result any more, and ends no row of the others.
TEST_F(SessionShards, CloseOfAnotherRankEndsNothing) {
  workers_[0]->Send(ShardStep(1, 0));
  v1::StreamRequest close = testing::MakeClose("a", 9);
  close.mutable_close()->set_shard_index(1);
  const v1::SequenceClosed closed = workers_[1]->Close(close);
  EXPECT_FALSE(closed.was_known() || closed.has_error());
  SendShards(1, {1, 2});
  EXPECT_EQ(Draws(1).size(), 2u);
}

}  // namespace
}  // namespace sortition::service::session_waiting_shards_test
