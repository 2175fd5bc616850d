// A rank's side of rows in shards: step ids, opens by rank 0, repeated steps and results brought to a new server.
#include <cstring>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "sortition/client.h"
#include "sortition/in_process.h"
#include "tests/client/state_harness.h"

namespace sortition::testing::shards_test {
namespace {

// Shards of rows of 16 elements, so that a shard has the width of the harness's rows.
client::ClientOptions RankOptions(uint32_t index) {
  client::ClientOptions options = HarnessOptions();
  options.worker_session = "ranks";
  options.shard = client::VocabularyShard{index, 2, index * StateHarness::kVocabulary, StateHarness::kVocabulary,
                                          2 * StateHarness::kVocabulary};
  return options;
}

// A rank other than 0 with a welcomed stream, and a sequence with the prompt {1, 2}.
struct Follower {
  Follower() : harness(RankOptions(1)) {
    harness.Welcome(harness.stream(0));
    record = Open("r");
  }
  std::shared_ptr<client::SequenceRecord> Open(const std::string& id) {
    client::SequenceOptions sequence;
    sequence.request_id = id;
    sequence.prompt = {1, 2};
    sequence.parameters.set_repetition_penalty(1.5);
    const auto opened = harness.Open(std::move(sequence));
    EXPECT_TRUE(opened.status->ok());
    return opened.record;
  }
  void RewriteCut(uint32_t position) {
    absl::MutexLock lock(&record->mutex);
    EXPECT_TRUE(record->history.Truncate(position).ok());
  }

  StateHarness harness;
  std::shared_ptr<client::SequenceRecord> record;
};

v1::Error Refused(v1::ErrorReason reason, const std::string& field = "") {
  v1::Error error = StateHarness::MakeError(absl::StatusCode::kDeadlineExceeded, reason);
  error.set_field(field);
  return error;
}

TEST(ShardsTest, OptionsThatRanksCannotShareAreRefused) {
  const auto refused = [](const std::string& what, void (*change)(client::ClientOptions*)) {
    client::ClientOptions options = RankOptions(1);
    change(&options);
    const absl::Status status = client::Client::Connect(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << what;
    EXPECT_NE(status.message().find(absl::StrCat("ClientOptions::", what, " ")), std::string::npos) << status;
  };
  refused("targets", [](auto* options) { options->targets = {"a", "b"}; });
  refused("in_process", [](auto* options) { options->in_process = client::InProcessEngine(); });
  refused("worker_session", [](auto* options) { options->worker_session.clear(); });
  refused("shard.count", [](auto* options) { options->shard->count = 1; });
  refused("shard.count", [](auto* options) { options->shard->count = 257; });
  refused("shard.index", [](auto* options) { options->shard->index = 2; });
  refused("shard.vocabulary_size", [](auto* options) { options->shard->vocabulary_size = 0; });
  refused("shard.first_token", [](auto* options) { options->shard->first_token = 16; });
  refused("shard.tokens", [](auto* options) { options->shard->tokens = 9; });
  refused("shard.tokens", [](auto* options) { options->shard->tokens = 0; });
}

TEST(ShardsTest, FollowerOpensNothingNamesStepsByText) {
  Follower follower;
  StateHarness& harness = follower.harness;
  const auto results = harness.Submit({follower.record});
  const v1::Step step = harness.TakeStep(harness.stream(0));
  EXPECT_EQ(step.logits().vocabulary_size(), 8u);
  const v1::VocabularyShard& shard = step.logits().shard();
  EXPECT_EQ(shard.index(), 1u);
  EXPECT_EQ(shard.count(), 2u);
  EXPECT_EQ(shard.first_token(), 8u);
  EXPECT_EQ(shard.total_vocabulary_size(), 16u);
  EXPECT_GE(shard.epoch(), StateHarness::kFirstEpoch);
  EXPECT_EQ(step.rows(0).position(), 2u);
  EXPECT_EQ(step.rows(0).step_id(), 3u);
  EXPECT_FALSE(step.rows(0).has_history_hash());
  EXPECT_EQ(step.timeout().seconds(), 52) << "7/8 of 60 s";
  harness.AnswerRow(harness.stream(0), step, 0, 5);
  EXPECT_EQ(results->times, 1);
  EXPECT_EQ(harness.Position(*follower.record), 3u);

  follower.RewriteCut(2);
  harness.Submit({follower.record});
  const v1::Step again = harness.TakeStep(harness.stream(0));
  EXPECT_EQ(again.rows(0).step_id(), (uint64_t{1} << 32) + 3) << "another step at the same position";
}

TEST(ShardsTest, RetriedStepKeepsItsName) {
  Follower follower;
  StateHarness& harness = follower.harness;
  const auto failed = harness.Submit({follower.record}, absl::Seconds(1));
  const v1::Step step = harness.TakeStep(harness.stream(0));
  harness.MoveBy(absl::Seconds(2));
  ASSERT_EQ(failed->times, 1);
  EXPECT_EQ(ErrorOfRow(failed->rows[0])->reason, v1::DEADLINE_PASSED);
  harness.Submit({follower.record});
  EXPECT_EQ(harness.TakeStep(harness.stream(0)).rows(0).step_id(), step.rows(0).step_id());
}

TEST(ShardsTest, FollowerBringsItsAnswerToNextServer) {
  Follower follower;
  StateHarness& harness = follower.harness;
  harness.Submit({follower.record});
  const v1::Step first = harness.TakeStep(harness.stream(0));
  harness.AnswerRow(harness.stream(0), first, 0, 5);
  harness.Submit({follower.record});
  const v1::Step second = harness.TakeStep(harness.stream(0));
  harness.End(harness.stream(0));
  harness.Welcome(harness.stream(1));
  const auto brought = harness.Take(harness.stream(1), v1::StreamRequest::kBringAnswer).message.bring_answer();
  EXPECT_EQ(brought.asked().request_id(), "r");
  EXPECT_EQ(brought.asked().step_id(), first.rows(0).step_id());
  EXPECT_EQ(brought.asked().position(), 2u);
  EXPECT_EQ(brought.result().step_id(), first.rows(0).step_id());
  EXPECT_EQ(brought.result().draw().token(), 5u);
  const v1::Step repeated = harness.TakeStep(harness.stream(1));
  EXPECT_EQ(repeated.rows(0).step_id(), second.rows(0).step_id());
  EXPECT_GT(repeated.logits().shard().epoch(), second.logits().shard().epoch());
  harness.AnswerRow(harness.stream(1), repeated, 0, 6);
  harness.Submit({follower.record});
  harness.TakeStep(harness.stream(1));  // and no BringAnswer before it: the server has the result
}

// Ranks of a model wait for each other between steps: this one sends nothing until the other has its result.
TEST(ShardsTest, RankWithoutRowBringsItsAnswer) {
  Follower follower;
  StateHarness& harness = follower.harness;
  const auto other = follower.Open("other");
  for (const auto& record : {follower.record, other}) {
    harness.Submit({record});
    harness.AnswerRow(harness.stream(0), harness.TakeStep(harness.stream(0)), 0, 5);
  }
  harness.state.Close(other.get());
  harness.End(harness.stream(0));
  harness.Welcome(harness.stream(1));
  const auto brought = harness.Take(harness.stream(1), v1::StreamRequest::kBringAnswer).message.bring_answer();
  EXPECT_EQ(brought.asked().request_id(), "r");
  EXPECT_EQ(brought.result().draw().token(), 5u);
  harness.Submit({follower.record});
  harness.TakeStep(harness.stream(1));  // and no other BringAnswer before it
}

TEST(ShardsTest, RefusalsMendedByRankZeroAreAwaited) {
  Follower follower;
  StateHarness& harness = follower.harness;
  const auto results = harness.Submit({follower.record});
  for (const v1::ErrorReason reason : {v1::SUPERSEDED, v1::STEP_CANCELLED, v1::OVERLOADED, v1::HISTORY_REQUIRED}) {
    harness.RefuseRow(harness.stream(0), harness.TakeStep(harness.stream(0)), 0, Refused(reason));
    harness.MoveBy(absl::Seconds(2));
  }
  harness.RefuseRow(harness.stream(0), harness.TakeStep(harness.stream(0)), 0, Refused(v1::LOGIT_NAN));
  ASSERT_EQ(results->times, 1);
  EXPECT_EQ(ErrorOfRow(results->rows[0])->reason, v1::LOGIT_NAN);
}

TEST(ShardsTest, MissingShardsAreNamedAtDeadline) {
  Follower follower;
  StateHarness& harness = follower.harness;
  const auto results = harness.Submit({follower.record}, absl::Seconds(60));
  harness.MoveBy(absl::Seconds(10));
  harness.RefuseRow(harness.stream(0), harness.TakeStep(harness.stream(0)), 0,
                    Refused(v1::DEADLINE_PASSED, "step.logits.shard"));
  EXPECT_EQ(results->times, 0);
  harness.MoveBy(absl::Seconds(1));
  harness.TakeStep(harness.stream(0));
  harness.MoveBy(absl::Seconds(50));
  ASSERT_EQ(results->times, 1);
  EXPECT_EQ(ErrorOfRow(results->rows[0])->field, "step.logits.shard");
  EXPECT_EQ(harness.Position(*follower.record), 2u);
}

// During a back-off the sequence is idle, and a full server may evict it: such replays must not count towards the
// limit.
TEST(ShardsTest, LostHistoryWithShardsMissingReplays) {
  StateHarness harness(RankOptions(0));
  FakeStream& stream = harness.stream(0);
  harness.Welcome(stream);
  const auto record = harness.OpenOn(stream, "r", true);
  const auto results = harness.Submit({record}, absl::Hours(1));
  for (int i = 0; i < 20; ++i) {
    harness.RefuseRow(stream, harness.TakeStep(stream), 0, Refused(v1::DEADLINE_PASSED, "step.logits.shard"));
    harness.MoveBy(absl::Seconds(10));
    harness.RefuseRow(stream, harness.TakeStep(stream), 0, StateHarness::HistoryRequired());
    ASSERT_EQ(results->times, 0) << i;
    harness.AcceptOpen(stream, harness.TakeOpen(stream), true);
  }
  harness.AnswerRow(stream, harness.TakeStep(stream), 0, 6);
  ASSERT_EQ(results->times, 1);
  EXPECT_NE(DrawOfRow(results->rows[0]), nullptr);
}

// A rank states its own tokens, by the ids of the whole row. All ranks get the same refusals, and each sends its own
// tokens.
TEST(ShardsTest, CompactShardsStateTheirOwnTokens) {
  StateHarness harness(RankOptions(1));
  harness.Welcome(harness.stream(0));
  harness.compact_count = 3;
  for (uint32_t id = 0; id < StateHarness::kVocabulary; ++id) harness.logits[id] = static_cast<float>(id);
  client::SequenceOptions options;
  options.request_id = "r";
  options.vocabulary_size = 2 * StateHarness::kVocabulary;
  options.live_vocabulary_size = 15;
  const auto record = std::make_shared<client::SequenceRecord>(options);
  harness.Open(record);
  const auto results = harness.Submit({record});
  const auto listed = [&](const SentMessage& message) {
    const auto& segments = message.payloads.at(0).segments;
    std::string pairs;
    for (const auto& segment : segments) pairs.append(reinterpret_cast<const char*>(segment.data), segment.size);
    std::vector<uint32_t> ids(pairs.size() / 8);
    std::memcpy(ids.data(), pairs.data(), ids.size() * sizeof(uint32_t));
    return ids;
  };
  SentMessage message = harness.Take(harness.stream(0), v1::StreamRequest::kStep);
  const v1::CompactRow row = message.message.step().rows(0).compact(0);
  EXPECT_EQ(listed(message), (std::vector<uint32_t>{14, 13, 12}));
  EXPECT_FALSE(row.is_whole() || row.has_unit_sum() || row.has_sum());
  EXPECT_EQ(message.message.step().logits().vocabulary_size(), StateHarness::kVocabulary);

  v1::Error refusal = StateHarness::MakeError(absl::StatusCode::kFailedPrecondition, v1::ROW_REQUIRED);
  v1::RequiredLogits& required = *refusal.add_required();
  required.set_cause(v1::RequiredLogits::CAUSE_TOKENS);
  for (const uint32_t token : {1u, 9u, 13u}) required.add_tokens(token);
  harness.RefuseRow(harness.stream(0), message.message.step(), 0, refusal);
  message = harness.Take(harness.stream(0), v1::StreamRequest::kStep);
  EXPECT_EQ(listed(message), (std::vector<uint32_t>{14, 13, 12, 9}));
  // Whole, and again where another rank was not.
  required.Clear();
  required.set_cause(v1::RequiredLogits::CAUSE_ROW);
  for (int i = 0; i < 2; ++i) {
    harness.RefuseRow(harness.stream(0), message.message.step(), 0, refusal);
    message = harness.Take(harness.stream(0), v1::StreamRequest::kStep);
    EXPECT_TRUE(message.message.step().rows(0).compact().empty());
    EXPECT_TRUE(message.message.step().logits().has_source());
  }
  const v1::Step step = message.message.step();
  message = {};  // lets go of the row's bytes
  harness.AnswerRow(harness.stream(0), step, 0, 5);
  EXPECT_EQ(results->times, 1);
}

// A sum's scale needs the whole row, which no rank has.
TEST(ShardsTest, ShardsThatNeedSumsGoWhole) {
  StateHarness harness(RankOptions(1));
  harness.Welcome(harness.stream(0));
  harness.compact_count = 3;
  client::SequenceOptions options;
  options.request_id = "r";
  options.vocabulary_size = 2 * StateHarness::kVocabulary;
  options.parameters.mutable_raw_logprobs()->set_top(1);
  const auto record = std::make_shared<client::SequenceRecord>(options);
  harness.Open(record);
  harness.Submit({record});
  EXPECT_TRUE(harness.TakeStep(harness.stream(0)).logits().has_source());
}

TEST(ShardsTest, UnsentClosesGoToNextStream) {
  Follower follower;
  StateHarness& harness = follower.harness;
  const auto other = follower.Open("other");
  harness.Submit({follower.record});
  harness.AnswerRow(harness.stream(0), harness.TakeStep(harness.stream(0)), 0, 5);
  harness.End(harness.stream(0));
  harness.state.Close(follower.record.get());
  harness.state.Close(other.get());  // it has no result
  harness.Welcome(harness.stream(1));
  const auto last = follower.Open("last");
  harness.state.Close(last.get());
  const v1::CloseSequence close = harness.Take(harness.stream(1), v1::StreamRequest::kClose).message.close();
  EXPECT_EQ(close.request_id(), "r");
  EXPECT_EQ(close.shard_index(), 1u);
  EXPECT_EQ(harness.Take(harness.stream(1), v1::StreamRequest::kClose).message.close().request_id(), "last");
}

TEST(ShardsTest, RankZeroOpensAndNamesStepsByText) {
  StateHarness harness(RankOptions(0));
  harness.Welcome(harness.stream(0));
  const auto record = harness.OpenOn(harness.stream(0), "r", true);
  const auto results = harness.Submit({record});
  const v1::Step step = harness.TakeStep(harness.stream(0));
  EXPECT_EQ(step.rows(0).step_id(), 3u);
  EXPECT_TRUE(step.rows(0).has_history_hash());
  EXPECT_EQ(step.logits().shard().index(), 0u);
  harness.RefuseRow(harness.stream(0), step, 0, Refused(v1::SUPERSEDED));
  ASSERT_EQ(results->times, 1) << "another worker has the sequence";
  EXPECT_EQ(ErrorOfRow(results->rows[0])->reason, v1::SUPERSEDED);
}

}  // namespace
}  // namespace sortition::testing::shards_test
