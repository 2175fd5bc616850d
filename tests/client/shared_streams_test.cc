// Streams that share memory with their server, where the server does not know the memory.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/fake_memory_server.h"
#include "tests/client/state_harness.h"

namespace sortition::testing::shared_streams_test {
namespace {

constexpr uint64_t kHello = 1;
constexpr uint64_t kAttach = 2;

class SharedStreamsTest : public ::testing::Test {
 protected:
  // Returns a client whose first stream is welcomed and shares memory.
  std::unique_ptr<StateHarness> Start(client::TransportKind kind) {
    auto link = client::MemoryLink::Connect(server_.address());
    EXPECT_TRUE(link.ok()) << link.status();
    auto memory = client::SharedMemory::Make(*std::move(link), FakeMemoryServer::kRegionBytes,
                                             client::MemoryLink::DefaultBudget());
    EXPECT_TRUE(memory.ok()) << memory.status();
    client::ClientOptions options = HarnessOptions();
    options.transport.kind = kind;
    auto harness = std::make_unique<StateHarness>(std::move(options));
    harness->stream(0).memory = *memory;
    harness->stream(0).in_use.kind = kind;
    harness->Welcome(harness->stream(0));
    const v1::StreamRequest attach = harness->Take(harness->stream(0), v1::StreamRequest::kAttachMemory).message;
    EXPECT_EQ(attach.attach_memory().token(), FakeMemoryServer::kToken);
    return harness;
  }
  static v1::Error UnknownRegion() { return StateHarness::MakeError(absl::StatusCode::kNotFound, v1::UNKNOWN_REGION); }

  FakeMemoryServer server_{FakeMemoryServer::SendRegion};
};

TEST_F(SharedStreamsTest, UnknownMemoryIsDroppedAndRowsTravelInline) {
  const auto harness = Start(client::TransportKind::kGrpc);
  FakeStream& stream = harness->stream(0);
  const auto record = harness->OpenOn(stream, "r", false);
  const auto results = harness->Submit({record});
  const v1::Step shared = harness->TakeStep(stream);
  EXPECT_TRUE(shared.logits().source().has_region());
  harness->Reject(stream, kAttach, UnknownRegion());
  EXPECT_EQ(stream.memory, nullptr);
  EXPECT_THAT(stream.memory_dropped, ::testing::HasSubstr("UNKNOWN_REGION"));
  harness->RefuseStep(stream, shared, UnknownRegion());
  harness->MoveTo(harness->state.next_event(harness->now));
  const v1::Step within = harness->TakeStep(stream);
  EXPECT_TRUE(within.logits().source().has_inline_());
  harness->AnswerRow(stream, within, 0, 3);
  ASSERT_EQ(results->times, 1);
  EXPECT_EQ(DrawOfRow(results->rows[0])->token(), 3);
  EXPECT_EQ(harness->connector.streams.size(), 1) << "the stream was as good as any";
  EXPECT_FALSE(stream.cancelled);
}

TEST_F(SharedStreamsTest, RingWithoutItsMemoryFails) {
  const auto harness = Start(client::TransportKind::kRing);
  harness->Reject(harness->stream(0), kAttach, UnknownRegion());
  EXPECT_TRUE(harness->stream(0).cancelled);
  EXPECT_NE(harness->state.links().last_failure().find("UNKNOWN_REGION"), std::string::npos);
}

TEST_F(SharedStreamsTest, OtherRejectionsKeepMemory) {
  const auto harness = Start(client::TransportKind::kGrpc);
  harness->Reject(harness->stream(0), kHello, UnknownRegion());
  harness->Reject(harness->stream(0), kAttach + 1, UnknownRegion());
  EXPECT_NE(harness->stream(0).memory, nullptr);
}

// The connection to the memory socket is lost, but not the stream's.
TEST_F(SharedStreamsTest, MemoryLostLaterIsReplacedWithStream) {
  const auto harness = Start(client::TransportKind::kGrpc);
  const auto record = harness->OpenOn(harness->stream(0), "r", false);
  harness->Submit({record});
  harness->RefuseStep(harness->stream(0), harness->TakeStep(harness->stream(0)), UnknownRegion());
  ASSERT_EQ(harness->connector.streams.size(), 2);
  harness->Welcome(harness->stream(1));
  EXPECT_TRUE(harness->stream(1).sent.empty()) << "not at once: the next stream may lose its memory as well";
  harness->MoveTo(harness->state.next_event(harness->now));
  harness->TakeOpen(harness->stream(1));
}

}  // namespace
}  // namespace sortition::testing::shared_streams_test
