// Kept answers are bounded, and none pushes out the answers of a client with fewer bytes.
#include "service/shard/kept_answers.h"

#include <random>

#include "absl/strings/str_cat.h"
#include "tests/shard/shards_fixture.h"

namespace sortition::service::kept_answers_test {
namespace {

constexpr uint64_t kBound = 1 << 20;
constexpr size_t kAnswer = 8000;  // bytes, about

class KeptAnswersTest : public ::testing::Test {
 protected:
  static SequenceKey Key(const std::string& client, uint32_t sequence) {
    return {client, "worker", absl::StrCat(sequence)};
  }
  static v1::StepRow Asked(uint64_t step) {
    v1::StepRow row;
    row.set_step_id(step);
    return row;
  }
  void Put(const std::string& client, uint32_t sequence, size_t bytes = kAnswer, uint64_t step = 1) {
    std::vector<v1::RowResult> parts(1);
    parts[0].mutable_draw()->set_checkpoint(std::string(bytes, 'x'));
    kept_.Put(Key(client, sequence), KeptAnswer(Asked(step), Held(std::move(parts)), 2), now_ += absl::Seconds(1));
    EXPECT_LE(kept_.bytes(), kBound);
  }
  static SharedAnswer Held(std::vector<v1::RowResult> parts) {
    return std::make_shared<const HeldAnswer>(RowAnswer{std::move(parts)});
  }
  SharedAnswer FindOf(const SequenceKey& key, uint64_t step, uint32_t index) {
    return kept_.Find(key, step, HashAsk(Asked(step)), index, now_);
  }
  uint32_t Of(const std::string& client, uint32_t sequences) const {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < sequences; ++i) kept += kept_.Find(Key(client, i)) != nullptr;
    return kept;
  }

  KeptAnswers kept_{Limits{.max_shard_answer_bytes = kBound}};
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(KeptAnswersTest, GreedyTenantEvictsItsOwn) {
  constexpr uint32_t kModest = 20;
  for (uint32_t i = 0; i < kModest; ++i) Put("modest", i);
  for (uint32_t i = 0; i < 1000; ++i) Put("greedy", i);
  EXPECT_EQ(Of("modest", kModest), kModest) << "though they are the longest unused";
  const uint32_t left = Of("greedy", 1000);
  EXPECT_GT(left, 50u);
  for (uint32_t i = 1000 - left; i < 1000; ++i) EXPECT_NE(kept_.Find(Key("greedy", i)), nullptr) << "the last of its";
  // A later answer finds room, too.
  for (uint32_t i = 0; i < kModest; ++i) Put("late", i);
  EXPECT_EQ(Of("late", kModest), kModest);
  EXPECT_EQ(Of("modest", kModest), kModest);
  // An answer of any size finds its own room, or none.
  Put("modest", kModest, kBound);
  EXPECT_EQ(kept_.Find(Key("modest", kModest)), nullptr);
  EXPECT_EQ(Of("late", kModest), kModest);
}

// An empty message takes two bytes on the wire, and twenty times that in memory. The answer is held as on the wire.
TEST_F(KeptAnswersTest, AnswersAreHeldAsBytes) {
  v1::RowResult result;
  result.set_row(3);
  for (int i = 0; i < 5000; ++i) result.mutable_verify()->add_positions();
  kept_.Put(Key("client", 1), KeptAnswer(Asked(1), Held({Encoded(result)}), 2), now_);
  EXPECT_GE(kept_.bytes(), 10'000u);
  EXPECT_LE(kept_.bytes(), 12'000u);
  StepAnswers repeated;
  repeated.Add(FindOf(Key("client", 1), 1, 0)->answer, 3);
  v1::StepResults received;
  ASSERT_TRUE(received.ParseFromString(repeated.results().SerializeAsString()));
  ASSERT_EQ(received.rows_size(), 1);
  EXPECT_EQ(received.rows(0).SerializeAsString(), result.SerializeAsString());
}

// A tenant keeps its answers within an equal share, however many the others put.
TEST_F(KeptAnswersTest, EqualShareIsKept) {
  std::mt19937_64 random(1);
  const auto below = [&](uint64_t bound) { return static_cast<uint32_t>(random() % bound); };
  constexpr uint32_t kClients = 4;
  constexpr uint32_t kOwn = kBound / kClients / (kAnswer + 1000);
  for (uint32_t i = 0; i < kOwn; ++i) Put("even", i);
  for (uint32_t i = 0; i < 5000; ++i) {
    Put(absl::StrCat("other ", below(kClients - 1)), below(500), 1 + below(2 * kAnswer), i);
    if (below(10) == 0) Put("even", below(kOwn), kAnswer, i);
    ASSERT_EQ(Of("even", kOwn), kOwn) << i;
  }
  EXPECT_GT(kept_.bytes(), kBound / 2);
  kept_.Expire(now_ + Limits().sequence_ttl);
  EXPECT_EQ(kept_.size(), 0u);
  EXPECT_EQ(kept_.bytes(), 0u);
}

TEST_F(KeptAnswersTest, RequestedAnswersStay) {
  constexpr uint32_t kRoom = kBound / (kAnswer + 1000);
  for (uint32_t i = 0; i < kRoom; ++i) Put("client", i);
  ASSERT_NE(FindOf(Key("client", 0), 1, 1), nullptr);
  EXPECT_EQ(FindOf(Key("client", 1), 2, 1), nullptr) << "another step";
  for (uint32_t i = 0; i < kRoom / 2; ++i) Put("client", kRoom + i);
  EXPECT_NE(kept_.Find(Key("client", 0)), nullptr);
  EXPECT_EQ(kept_.Find(Key("client", 1)), nullptr);
}

TEST_F(KeptAnswersTest, ReplacedByNextOrDroppedAtLastClose) {
  Put("client", 0);
  const uint64_t bytes = kept_.bytes();
  Put("client", 0, kAnswer, 2);
  EXPECT_EQ(kept_.bytes(), bytes);
  EXPECT_EQ(FindOf(Key("client", 0), 1, 0), nullptr);
  kept_.Close(Key("client", 0), 1);
  kept_.Close(Key("client", 0), 1);
  EXPECT_EQ(FindOf(Key("client", 0), 2, 1), nullptr);
  EXPECT_NE(FindOf(Key("client", 0), 2, 0), nullptr);
  kept_.Close(Key("client", 0), 0);
  EXPECT_EQ(kept_.size(), 0u);
  EXPECT_EQ(kept_.bytes(), 0u);
}

TEST_F(KeptAnswersTest, DroppingATenantSparesOthers) {
  for (uint32_t i = 0; i < 3; ++i) Put("kept", i);
  const uint64_t bytes = kept_.bytes();
  for (uint32_t i = 0; i < 5; ++i) Put("forgotten", i);
  kept_.Forget("forgotten");
  kept_.Forget("unknown");
  EXPECT_EQ(Of("forgotten", 5), 0u);
  EXPECT_EQ(Of("kept", 3), 3u);
  EXPECT_EQ(kept_.bytes(), bytes);
  Put("forgotten", 0);
  EXPECT_EQ(Of("forgotten", 1), 1u);
  kept_.Expire(now_ + Limits().sequence_ttl);
  EXPECT_EQ(kept_.size(), 0u);
  EXPECT_EQ(kept_.bytes(), 0u);
}

TEST_F(KeptAnswersTest, TenantKeepsItsShareOfALargeBound) {
  constexpr size_t kLong = 4 << 20;
  KeptAnswers kept(Limits{.max_shard_answer_bytes = 4 * kMostKeptOfTenant});
  std::vector<v1::RowResult> parts(1);
  parts[0].mutable_draw()->set_checkpoint(std::string(kLong, 'x'));
  const SharedAnswer held = Held(std::move(parts));
  for (const char* client : {"one", "other"}) {
    for (uint32_t i = 0; i < 40; ++i) kept.Put(Key(client, i), KeptAnswer(Asked(1), held, 2), now_);
  }
  EXPECT_LE(kept.bytes(), 2 * kMostKeptOfTenant);
  EXPECT_GT(kept.bytes(), 2 * (kMostKeptOfTenant - 2 * kLong));
  for (const char* client : {"one", "other"}) {
    EXPECT_NE(kept.Find(Key(client, 39)), nullptr);
    EXPECT_EQ(kept.Find(Key(client, 0)), nullptr) << "its own oldest";
  }
}

// The same seen from outside: the bound is the server's limit, and the owner is the tenant.
TEST(KeptAnswersOfAServer, GreedyTenantEvictsItsOwn) {
  TestEngine engine = TestEngine::OnCpu({.max_shard_answer_bytes = 6000});
  StreamWorker modest(engine.get(), {.tenant = "modest"});
  StreamWorker greedy(engine.get(), {.tenant = "greedy"});
  // Brings an answer of the rank; its draw is returned unchanged.
  const auto bring = [](StreamWorker& rank, uint64_t request) {
    v1::StreamRequest message;
    v1::BringAnswer& answer = *message.mutable_bring_answer();
    answer.mutable_asked()->set_request_id(absl::StrCat(request));
    answer.mutable_asked()->set_step_id(1);
    answer.mutable_result()->set_step_id(1);
    answer.mutable_result()->mutable_draw()->set_token(7);
    rank.Send(message);
  };
  bring(modest, 1);
  for (uint64_t request = 1; request <= 100; ++request) bring(greedy, request);
  EXPECT_GT(engine->shards().kept(), 5u);
  EXPECT_LT(engine->shards().kept(), 15u);
  StepBuilder step(1, 8);
  step.AddRow("1", 1, 0, std::string(8 * kElement, '\0'));
  v1::VocabularyShard& shard = *step.step().mutable_logits()->mutable_shard();
  shard.set_index(1);
  shard.set_count(2);
  shard.set_first_token(8);
  shard.set_total_vocabulary_size(16);
  shard.set_epoch(1);
  modest.Send(step.Build());
  EXPECT_EQ(modest.Results(1, 1).at(0).draw().token(), 7u);
  greedy.Send(step.Build());
  EXPECT_EQ(engine->shards().waiting(), 1u) << "it has lost its own";
}

}  // namespace
}  // namespace sortition::service::kept_answers_test
