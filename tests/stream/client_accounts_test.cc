// Bounds on one client: their refusals, the share that they leave to others, and the bound of the table of clients.
#include "service/client_accounts.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "service/text/cost.h"
#include "tests/stream/stateful_stream.h"
#include "tests/support/expect_error.h"
#include "tests/support/stream_worker.h"
#include "tests/support/test_engine.h"

namespace sortition::service::client_accounts_test {
namespace {

using testing::FakeClock;
using testing::MakeOpen;
using testing::StepBuilder;
using testing::StreamWorker;
using testing::TestEngine;

constexpr uint32_t kVocabulary = 64;

void ExpectLimit(const std::optional<Refusal>& refusal, const char* limit) {
  ASSERT_TRUE(refusal.has_value()) << limit;
  EXPECT_EQ(refusal->reason, Reason::kClientLimit);
  EXPECT_EQ(refusal->limit, limit);
  EXPECT_GT(refusal->retry_after, absl::ZeroDuration());
}

TEST(ClientAccountTest, StreamsAndMemoryAreCounted) {
  Limits limits;
  limits.client_streams = 2;
  limits.client_regions = 2;
  limits.client_memory_bytes = 100;
  FakeClock clock;
  ClientAccount account("a", limits, &clock);
  EXPECT_FALSE(account.TakeStream());
  EXPECT_FALSE(account.TakeStream());
  ExpectLimit(account.TakeStream(), "client_streams 2");
  account.GiveBackStream();
  EXPECT_FALSE(account.TakeStream());

  EXPECT_FALSE(account.TakeRegion(60, "f"));
  ExpectLimit(account.TakeRegion(41, "f"), "client_memory_bytes 100");
  ExpectLimit(account.TakeRegion(~uint64_t{0}, "f"), "client_memory_bytes 100");
  EXPECT_FALSE(account.TakeRegion(40, "f"));
  ExpectLimit(account.TakeRegion(0, "f"), "client_regions 2");
  account.GiveBackRegion(60);
  EXPECT_FALSE(account.TakeRegion(60, "f"));
  EXPECT_EQ(account.use().streams, 2u);
  EXPECT_EQ(account.use().memory_bytes, 100u);
}

TEST(ClientAccountTest, UnreadAnswersAreBounded) {
  Limits limits;
  limits.client_answer_bytes = 1024;
  FakeClock clock;
  ClientAccount account("a", limits, &clock);
  EXPECT_FALSE(account.TakeAnswer(1023));
  EXPECT_FALSE(account.TakeAnswer(5000)) << "one may exceed the bound";
  ExpectLimit(account.TakeAnswer(1), "client_answer_bytes 1024");
  account.GiveBackAnswer(5000);
  EXPECT_FALSE(account.TakeAnswer(1));
}

TEST(ClientAccountTest, HeldMessagesAreBounded) {
  Limits limits;
  limits.client_received_bytes = 1024;
  FakeClock clock;
  ClientAccount account("a", limits, &clock);
  account.HoldMessage(511);
  EXPECT_FALSE(account.CheckRoomForCall());
  account.HoldMessage(1);
  ExpectLimit(account.CheckRoomForCall(), "client_received_bytes 1024");
  EXPECT_TRUE(account.HasRoomForMessage());
  account.HoldMessage(5000);
  EXPECT_FALSE(account.HasRoomForMessage());
  account.GiveBackMessage(5000);
  account.GiveBackMessage(512);
  EXPECT_FALSE(account.CheckRoomForCall());
  EXPECT_TRUE(account.HasRoomForMessage());
}

TEST(ClientAccountTest, NoLimitsNothingIsRefused) {
  FakeClock clock;
  ClientAccount account("a", Limits(), &clock);
  for (int i = 0; i < 10'000; ++i) {
    EXPECT_FALSE(account.TakeStream());
    EXPECT_FALSE(account.TakeRegion(1u << 30, "f"));
    EXPECT_FALSE(account.Charge(1024, 1u << 30, "f"));
  }
  EXPECT_TRUE(account.settled());
}

// A client that retries when advised is served; over any long time the rate holds.
TEST(ClientAccountTest, RatesHoldAndAdviceIsRight) {
  Limits limits;
  limits.client_rows_per_second = 1000;
  FakeClock clock;
  ClientAccount account("a", limits, &clock);
  const absl::Time start = clock.Now();
  uint64_t rows = 0;
  int refused = 0;
  while (clock.Now() - start < absl::Seconds(100)) {
    if (const auto refusal = account.Charge(256, 1, "step")) {
      ++refused;
      EXPECT_EQ(refusal->field, "step");
      EXPECT_EQ(refusal->limit, "client_rows_per_second 1000");
      ASSERT_GT(refusal->retry_after, absl::ZeroDuration());
      ASSERT_LT(refusal->retry_after, absl::Seconds(1));
      clock.Advance(refusal->retry_after);
      ASSERT_FALSE(account.Charge(256, 1, "step")) << "came back when told";
    }
    rows += 256;
  }
  EXPECT_GT(refused, 100);
  EXPECT_GE(rows, 100'000u);
  EXPECT_LE(rows, 100'000u + 1000 + 2 * 256);
}

TEST(ClientAccountTest, MessageMayExceedOneSecondsRate) {
  Limits limits;
  limits.client_bytes_per_second = 1000;
  FakeClock clock;
  ClientAccount account("a", limits, &clock);
  EXPECT_FALSE(account.Charge(0, 10'000, "step"));
  EXPECT_FALSE(account.settled());
  const auto refusal = account.Charge(0, 1, "step");
  ExpectLimit(refusal, "client_bytes_per_second 1000");
  EXPECT_NEAR(absl::ToDoubleSeconds(refusal->retry_after), 9, 0.01);
  clock.Advance(absl::Seconds(8));
  EXPECT_TRUE(account.Charge(0, 1, "step"));
  clock.Advance(absl::Seconds(2));
  EXPECT_FALSE(account.Charge(0, 1, "step"));
}

TEST(ClientAccountsTest, TableIsBoundedAndKeepsDebts) {
  Limits limits;
  limits.max_clients = 3;
  limits.client_rows_per_second = 10;
  FakeClock clock;
  ClientAccounts accounts(limits, &clock);
  auto held = accounts.Enter("held");
  {
    auto debtor = accounts.Enter("debtor");
    EXPECT_FALSE(std::get<0>(debtor)->Charge(30, 0, "step"));
    EXPECT_TRUE(std::holds_alternative<std::shared_ptr<ClientAccount>>(accounts.Enter("gone")));
  }
  EXPECT_TRUE(std::holds_alternative<std::shared_ptr<ClientAccount>>(accounts.Enter("new"))) << "in place of `gone`";
  auto again = accounts.Enter("debtor");
  EXPECT_TRUE(std::get<0>(again)->Charge(1, 0, "step")) << "a new connection does not pay a debt";
  auto third = accounts.Enter("new");
  const auto refused = accounts.Enter("one too many");
  ASSERT_TRUE(std::holds_alternative<Refusal>(refused));
  EXPECT_EQ(std::get<Refusal>(refused).reason, Reason::kOverloaded);
  EXPECT_EQ(std::get<Refusal>(refused).limit, "max_clients 3");
  EXPECT_TRUE(std::holds_alternative<std::shared_ptr<ClientAccount>>(accounts.Enter("held"))) << "who is in stays in";
  again = Refusal{};
  clock.Advance(absl::Seconds(4));
  EXPECT_TRUE(std::holds_alternative<std::shared_ptr<ClientAccount>>(accounts.Enter("one too many")));
}

TEST(ClientAccountsTest, StreamsAreReleasedWithTheirHold) {
  Limits limits;
  limits.client_streams = 1;
  FakeClock clock;
  ClientAccounts accounts(limits, &clock);
  {
    auto first = accounts.OpenStream("a");
    ASSERT_TRUE(std::holds_alternative<ClientStream>(first));
    EXPECT_TRUE(std::holds_alternative<Refusal>(accounts.OpenStream("a")));
    EXPECT_TRUE(std::holds_alternative<ClientStream>(accounts.OpenStream("b")));
    ClientStream moved = std::get<ClientStream>(std::move(first));
    ASSERT_EQ(accounts.all().size(), 1u);
    EXPECT_EQ(accounts.all()[0]->use().streams, 1u);
  }
  EXPECT_TRUE(std::holds_alternative<ClientStream>(accounts.OpenStream("a")));
}

v1::StreamRequest Step(uint64_t batch, uint32_t rows) {
  StepBuilder step(batch, kVocabulary);
  for (uint32_t i = 0; i < rows; ++i) {
    step.AddRow(absl::StrCat("r", i), batch, static_cast<uint32_t>(batch), testing::F32Peak(kVocabulary, 3));
  }
  return step.Build();
}

TEST(ClientRateTest, StepsBeyondRateAreRefusedOthersServed) {
  Limits limits;
  limits.client_rows_per_second = 4;
  TestEngine engine = TestEngine::OnCpu(limits);
  StreamWorker greedy(engine.get(), {.tenant = "greedy"}), again(engine.get(), {.tenant = "greedy"}),
      other(engine.get(), {.tenant = "other"});
  for (StreamWorker* worker : {&greedy, &again, &other}) {
    for (int i = 0; i < 4; ++i) worker->MustOpen(MakeOpen(absl::StrCat("r", i), 1, kVocabulary));
  }
  EXPECT_EQ(greedy.Run(Step(1, 4)).size(), 4u);
  greedy.Send(Step(2, 1));
  ExpectError(greedy.StepError(2), Reason::kClientLimit, "step");
  again.Send(Step(3, 1));
  ExpectError(again.StepError(3), Reason::kClientLimit, "step");
  EXPECT_EQ(other.Run(Step(1, 4)).size(), 4u);
  engine.clock().Advance(absl::Milliseconds(300));
  EXPECT_EQ(greedy.Run(Step(4, 1)).size(), 1u);
}

TEST(ClientRateTest, OpensAndMasksCountAsBytes) {
  Limits limits;
  limits.client_bytes_per_second = 50;
  TestEngine engine = TestEngine::OnCpu(limits);
  StreamWorker worker(engine.get());
  v1::OpenSequence open = MakeOpen("a", 1, kVocabulary);
  for (uint32_t token = 1; token < 60; ++token) open.mutable_parameters()->add_banned_token_ids(token);
  worker.MustOpen(open);
  ExpectError(worker.Open(MakeOpen("b", 1, kVocabulary)).error(), Reason::kClientLimit, "open");
  engine.clock().Advance(absl::Seconds(10));
  worker.MustOpen(MakeOpen("b", 1, kVocabulary));
}

// The work of a message shows when it is done, so the next one is refused.
TEST(ClientRateTest, WorkBeyondRateIsOwed) {
  Limits limits;
  limits.client_work_per_second = price::kRow;
  TestEngine engine = TestEngine::OnCpu(limits);
  StreamWorker worker(engine.get());
  worker.MustOpen(MakeOpen("r0", 1, kVocabulary));
  engine.clock().Advance(absl::Seconds(1));
  EXPECT_EQ(worker.Run(Step(1, 1)).size(), 1u);
  worker.Send(Step(2, 1));
  const v1::Error refused = worker.StepError(2);
  ExpectError(refused, Reason::kClientLimit, "step");
  EXPECT_EQ(refused.limit(), "client_work_per_second 3000");
  engine.clock().Advance(absl::Milliseconds(10));
  EXPECT_EQ(worker.Run(Step(2, 1)).size(), 1u);
}

TEST(ClientRateTest, ForksCountAsBytes) {
  Limits limits;
  limits.client_bytes_per_second = 10;
  TestEngine engine = TestEngine::OnCpu(limits);
  StreamWorker worker(engine.get());
  worker.MustOpen(MakeOpen("parent", 1, kVocabulary));
  v1::StreamRequest fork;
  fork.mutable_fork()->set_parent_request_id("parent");
  *fork.mutable_fork()->mutable_child() = MakeOpen("child", 1, kVocabulary);
  worker.Send(fork);
  const auto response = worker.Await([](const v1::StreamResponse& message) { return message.has_forked(); });
  ASSERT_TRUE(response.has_value());
  ExpectError(response->forked().error(), Reason::kClientLimit, "fork");
}

// A history that is refused at its first piece has one answer.
TEST(ClientRateTest, RefusedHistoryInPiecesHasOneAnswer) {
  Limits limits;
  limits.client_bytes_per_second = 10;
  TestEngine engine = TestEngine::OnCpu(limits);
  StreamWorker worker(engine.get());
  worker.MustOpen(MakeOpen("first", 1, kVocabulary));
  v1::OpenSequence piece = StatefulOpen("a", 1);
  piece.mutable_history()->set_continues(true);
  ExpectError(worker.Open(piece).error(), Reason::kClientLimit, "open");
  v1::StreamRequest last;
  *last.mutable_open() = piece;
  last.mutable_open()->mutable_history()->set_offset(3);
  last.mutable_open()->mutable_history()->set_continues(false);
  worker.Send(last);
  engine.clock().Advance(absl::Seconds(1000));
  v1::SequenceOpened next = worker.Open(MakeOpen("b", 1, kVocabulary));
  EXPECT_EQ(next.request_id(), "b") << "the last piece was answered";
}

TEST(ClientSequencesTest, TenantEvictsOnlyItsOwnIdleSequences) {
  Limits limits;
  limits.client_sequences = 2;
  limits.replay_guard = absl::ZeroDuration();
  TestEngine engine = TestEngine::OnFake(limits);
  StreamWorker a(engine.get(), {.tenant = "a"}), b(engine.get(), {.tenant = "b"});
  b.MustOpen(StatefulOpen("b0", 1));
  for (int i = 0; i < 3; ++i) {
    engine.clock().Advance(absl::Seconds(1));
    a.MustOpen(StatefulOpen(absl::StrCat("a", i), 1));
  }
  EXPECT_EQ(engine->sequences().live_sequences(), 3u);
  StreamWorker second(engine.get(), {.tenant = "a"});
  ExpectError(second.Open(Reopened(StatefulOpen("a0", 1), 2)).error(), Reason::kHistoryRequired, "open.history");
  second.MustOpen(Reopened(StatefulOpen("a1", 1), 2));
  b.MustOpen(Reopened(StatefulOpen("b0", 1), 2));

  // None can be evicted while each has a step in flight.
  const testing::PlainSequence plain(StatefulOpen("x", 1));
  a.Send(PeakStep(1, "a2", 1, plain, 5));
  second.Send(PeakStep(1, "a1", 1, plain, 5));
  const v1::SequenceOpened refused = a.Open(StatefulOpen("a3", 1));
  ExpectError(refused.error(), Reason::kClientLimit, "open");
  EXPECT_EQ(refused.error().limit(), "client_sequences 2");
  b.MustOpen(StatefulOpen("b1", 1));
  engine.fake().FinishAll();
  a.MustOpen(StatefulOpen("a3", 1));
}

TEST(ClientMemoryTest, RegionsCountAcrossTenantsConnections) {
  Limits limits;
  limits.client_regions = 2;
  TestEngine engine = TestEngine::OnCpu(limits);
  const auto connect = [&](const char* identity) {
    auto account = std::get<std::shared_ptr<ClientAccount>>(engine->clients().Enter(identity));
    return std::get<std::shared_ptr<MemoryConnection>>(engine->regions().Connect([] {}, account));
  };
  const auto first = connect("a"), second = connect("a"), other = connect("b");
  EXPECT_TRUE(std::holds_alternative<MemoryConnection::Registered>(first->Register(1)));
  auto made = second->Register(1);
  ASSERT_TRUE(std::holds_alternative<MemoryConnection::Registered>(made));
  const auto refused = first->Register(1);
  ASSERT_TRUE(std::holds_alternative<Refusal>(refused));
  EXPECT_EQ(std::get<Refusal>(refused).limit, "client_regions 2");
  EXPECT_EQ(engine->regions().use().regions, 2u) << "what was refused takes nothing of what all have";
  EXPECT_TRUE(std::holds_alternative<MemoryConnection::Registered>(other->Register(1)));
  EXPECT_FALSE(second->Unregister(std::get<MemoryConnection::Registered>(made).id));
  EXPECT_TRUE(std::holds_alternative<MemoryConnection::Registered>(first->Register(1)));
  first->Close();
  second->Close();
  EXPECT_EQ(std::get<0>(engine->clients().Enter("a"))->use().regions, 0u);
}

}  // namespace
}  // namespace sortition::service::client_accounts_test
