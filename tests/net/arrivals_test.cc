// Bytes of messages that have begun: how they count, who waits, and whose calls are given up.
#include "service/net/arrivals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/server/http2_client.h"
#include "tests/server/raw_http2.h"
#include "tests/server/test_server.h"
#include "tests/support/fake_clock.h"

namespace sortition::server::arrivals_test {
namespace {

constexpr uint64_t kBound = 8 << 20;
constexpr uint64_t kMessage = 1 << 20;

service::Limits SmallLimits() {
  service::Limits limits;
  limits.client_received_bytes = kBound;
  limits.max_message_bytes = kMessage;
  return limits;
}

class ArrivalsTest : public ::testing::Test {
 protected:
  bool MayReceive(Arrivals& arrivals) { return arrivals.MayReceive(clock_.Now()); }

  testing::FakeClock clock_;
  const std::shared_ptr<service::ClientAccount> account_ =
      std::make_shared<service::ClientAccount>("a", SmallLimits(), &clock_);
  Arrivals one_;
  Arrivals two_;
};

TEST_F(ArrivalsTest, ConnectionsBeyondHalfTakeTurns) {
  for (Arrivals* arrivals : {&one_, &two_}) {
    for (int i = 0; i < 2; ++i) arrivals->BeginRead(account_);
    ASSERT_TRUE(arrivals->Set(kBound / 4));
  }
  EXPECT_TRUE(MayReceive(one_));
  EXPECT_FALSE(MayReceive(two_));
  clock_.Advance(service::ClientAccount::kTurn);
  EXPECT_FALSE(MayReceive(one_)) << "the other waits";
  EXPECT_TRUE(MayReceive(two_));
  EXPECT_FALSE(MayReceive(one_));
  clock_.Advance(service::ClientAccount::kTurn);
  EXPECT_TRUE(MayReceive(one_));
  clock_.Advance(service::ClientAccount::kTurn);
  EXPECT_TRUE(MayReceive(one_)) << "nobody has asked since";
  // A message of the first ends.
  ASSERT_TRUE(one_.Set(kBound / 8));
  EXPECT_TRUE(MayReceive(two_));
}

TEST_F(ArrivalsTest, ShortMessagesPass) {
  two_.BeginRead(account_);
  for (int i = 0; i < 2; ++i) one_.BeginRead(account_);
  ASSERT_TRUE(one_.Set(kBound / 2));
  ASSERT_TRUE(MayReceive(one_));
  ASSERT_TRUE(two_.Set(Arrivals::kShortBytes - 1));
  EXPECT_TRUE(MayReceive(two_));
  ASSERT_TRUE(two_.Set(Arrivals::kShortBytes));
  EXPECT_FALSE(MayReceive(two_));
}

TEST_F(ArrivalsTest, ATurnEndsWithItsReads) {
  const uint64_t read = one_.BeginRead(account_);
  two_.BeginRead(account_);
  account_->HoldMessage(kBound / 2);
  ASSERT_TRUE(one_.Set(kMessage));
  ASSERT_TRUE(two_.Set(kMessage));
  ASSERT_TRUE(MayReceive(one_));
  ASSERT_FALSE(MayReceive(two_));
  one_.EndRead(read);
  EXPECT_TRUE(MayReceive(two_));
  account_->GiveBackMessage(kBound / 2);
}

TEST_F(ArrivalsTest, ReadsBeyondTheBoundAreGivenUp) {
  std::vector<uint64_t> reads;
  for (int i = 0; i < 8; ++i) reads.push_back(one_.BeginRead(account_));
  ASSERT_TRUE(one_.Set(kBound / 4 * 3));
  EXPECT_FALSE(one_.IsGivenUp(reads.back()));
  ASSERT_TRUE(one_.Set(kBound / 4 * 3 + 1));
  for (const uint64_t read : reads) EXPECT_TRUE(one_.IsGivenUp(read));
  EXPECT_EQ(account_->GivenUp().limit, "client_received_bytes 8388608");
  EXPECT_TRUE(account_->HasRoomToArrive()) << "what is given up counts no more";
  const uint64_t next = one_.BeginRead(account_);
  EXPECT_FALSE(one_.IsGivenUp(next));
  // As much again comes before their calls have ended.
  EXPECT_FALSE(one_.Set(kBound / 4 * 6 + 2));
}

TEST_F(ArrivalsTest, ReadsThatWereGivenUpEnd) {
  std::vector<uint64_t> reads;
  for (int i = 0; i < 8; ++i) reads.push_back(one_.BeginRead(account_));
  ASSERT_TRUE(one_.Set(kBound));
  for (const uint64_t read : reads) one_.EndRead(read);
  for (int i = 0; i < 8; ++i) reads[i] = one_.BeginRead(account_);
  ASSERT_TRUE(one_.Set(2 * kBound)) << "the server may give up once more";
  EXPECT_TRUE(one_.IsGivenUp(reads.back()));
}

TEST_F(ArrivalsTest, HeldMessagesLeaveLess) {
  for (int i = 0; i < 8; ++i) one_.BeginRead(account_);
  account_->HoldMessage(kBound);
  EXPECT_FALSE(account_->HasRoomForMessage());
  const uint64_t most = kBound / 4 + account_->most_read_bytes();
  ASSERT_TRUE(one_.Set(most));
  EXPECT_TRUE(account_->HasRoomToArrive());
  ASSERT_TRUE(one_.Set(most + 1));
  EXPECT_TRUE(one_.IsGivenUp(0));
  account_->GiveBackMessage(kBound);
}

// The messages of calls that the server has ended stay among a connection's bytes.
TEST_F(ArrivalsTest, BytesCountForReadsAlone) {
  ASSERT_TRUE(one_.Set(100 * kBound));
  const uint64_t read = one_.BeginRead(account_);
  ASSERT_TRUE(one_.Set(100 * kBound));
  EXPECT_FALSE(one_.IsGivenUp(read));
  EXPECT_TRUE(MayReceive(two_));
  one_.EndRead(read);
  EXPECT_TRUE(account_->HasRoomForMessage());
  EXPECT_EQ(account_.use_count(), 1) << "an idle connection holds no account";
}

TEST_F(ArrivalsTest, AClosedConnectionHoldsNothing) {
  const uint64_t read = one_.BeginRead(account_);
  ASSERT_TRUE(one_.Set(2 * kMessage));
  one_.Close();
  account_->HoldMessage(kBound - 1);
  EXPECT_TRUE(account_->HasRoomForMessage());
  account_->GiveBackMessage(kBound - 1);
  one_.EndRead(read);
}

class GivenUpTest : public ::testing::TestWithParam<const char*> {};

// gRPC received 200 messages of 12.6 MB whole, 2.6 GB, before the first could be refused.
TEST_P(GivenUpTest, CallsAreRefusedByName) {
  constexpr int kCalls = 16;
  constexpr uint64_t kSent = kMessage - 64;
  Config config = TestConfig();
  config.limits.client_received_bytes = kBound;
  config.limits.max_message_bytes = kMessage;
  TestServer server(config);
  Http2Client client(server.target());
  ASSERT_TRUE(client.connected());
  const std::string start("\0\0\xf\xff\xff", 5);
  const std::string filler(16'384, 'x');
  std::vector<uint64_t> sent(kCalls, 0);
  for (uint32_t i = 0; i < kCalls; ++i) {
    client.Call(2 * i + 1, GetParam());
    sent[i] = client.SendData(2 * i + 1, start);
  }
  const auto ended = [&] {
    int count = 0;
    for (uint32_t i = 0; i < kCalls; ++i) count += client.ended(2 * i + 1) ? 1 : 0;
    return count;
  };
  ASSERT_TRUE(Eventually([&] {
    bool moves = false;
    for (uint32_t i = 0; i < kCalls; ++i) {
      const uint64_t count = client.SendData(
          2 * i + 1, std::string_view(filler).substr(0, std::min<uint64_t>(filler.size(), kSent - sent[i])));
      sent[i] += count;
      moves |= count > 0;
    }
    client.Receive(moves ? 0 : 5);
    return ended() == kCalls;
  })) << ended();
  EXPECT_NE(client.headers().find("client_received_bytes 8388608"), std::string::npos);
  EXPECT_TRUE(Eventually([&] { return server.server().streams() == 0; }));
  // The connection serves the next call.
  client.Call(2 * kCalls + 1, GetParam());
  client.SendMessage(2 * kCalls + 1, "\xff");
  client.HalfClose(2 * kCalls + 1);
  EXPECT_TRUE(Eventually([&] {
    client.Receive(5);
    return client.ended(2 * kCalls + 1);
  }));
}

INSTANTIATE_TEST_SUITE_P(Methods, GivenUpTest,
                         ::testing::Values("/sortition.v1.SamplingService/Sample",
                                           "/sortition.v1.SamplingService/Stream"),
                         [](const auto& info) { return std::string(info.param).substr(30); });

}  // namespace
}  // namespace sortition::server::arrivals_test
