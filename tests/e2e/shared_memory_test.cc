// Rows in memory shared with a server: the tokens are the reference's, even if the memory or the server is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/client/reference_sequence.h"
#include "tests/client/rows.h"
#include "tests/e2e/servers.h"
#include "tests/e2e/texts.h"
#include "tests/server/server_process.h"

namespace sortition::testing::shared_memory_test {
namespace {

using client::TransportKind;

std::string SocketPath(const char* name) {
  return absl::StrCat(::testing::TempDir(), "sortition_", getpid(), "_", name, ".sock");
}

std::string MemoryTarget(const char* name) { return absl::StrCat("unix:", SocketPath(name)); }

std::unique_ptr<process::ServerProcess> StartSharing(const char* name, std::vector<std::string> flags = {}) {
  flags.push_back(absl::StrCat("--memory_listen=unix:", SocketPath(name)));
  return StartServer(flags);
}

client::ClientOptions MakeOptions(TransportKind kind, std::vector<std::string> targets) {
  client::ClientOptions options = QuickOptions(std::move(targets));
  options.transport.kind = kind;
  options.transport.shared_memory_bytes = 1 << 20;
  return options;
}

// All rows travel within the gRPC stream.
client::ClientOptions WithoutRowMemory(std::vector<std::string> targets) {
  client::ClientOptions options = MakeOptions(TransportKind::kGrpc, std::move(targets));
  options.transport.shared_memory_bytes = 0;
  return options;
}

void ExpectGrpc(const client::Client& client, bool row_memory) {
  EXPECT_EQ(client.transport_in_use().kind, TransportKind::kGrpc);
  EXPECT_EQ(client.transport_in_use().row_memory, row_memory);
}

TEST(SharedMemoryTest, TextsEqualReference) {
  const auto server = StartSharing("texts");
  for (const auto& [asked, got] :
       {std::pair(TransportKind::kGrpc, TransportKind::kGrpc), std::pair(TransportKind::kAuto, TransportKind::kRing)}) {
    const auto client = Connect(MakeOptions(asked, {server->address()}));
    EXPECT_EQ(client->transport_in_use().kind, got);
    EXPECT_TRUE(client->transport_in_use().row_memory);
    EXPECT_EQ(client->transport_in_use().note, "");
    Texts texts(client.get(), "text");
    for (int step = 0; step < 20; ++step) ASSERT_NO_FATAL_FAILURE(texts.Step());
  }
}

TEST(SharedMemoryTest, AutoWithoutFreeRingStaysOnStream) {
  const auto server = StartSharing("no_ring", {"--max_rings=1"});
  const auto first = Connect(MakeOptions(TransportKind::kAuto, {server->address()}));
  EXPECT_EQ(first->transport_in_use().kind, TransportKind::kRing);
  const auto second = Connect(MakeOptions(TransportKind::kAuto, {server->address()}));
  ExpectGrpc(*second, /*row_memory=*/true);
  EXPECT_THAT(second->transport_in_use().note, ::testing::HasSubstr("max_rings 1"));
  Texts texts(second.get(), "text");
  for (int step = 0; step < 5; ++step) ASSERT_NO_FATAL_FAILURE(texts.Step());
}

// TCP connections on this machine to a port of it that are open at the caller's end.
int ConnectionsTo(const std::string& address) {
  const int port = std::stoi(address.substr(address.rfind(':') + 1));
  int count = 0;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream lines(table);
    std::string line;
    std::getline(lines, line);  // names of columns
    while (std::getline(lines, line)) {
      std::istringstream columns(line);
      std::string number, local, remote, state;
      columns >> number >> local >> remote >> state;
      count += state == "01" && std::stoi(remote.substr(remote.find(':') + 1), nullptr, 16) == port;
    }
  }
  return count;
}

// A moved stream leaves no trace: the client has ended it, and no connection remains.
TEST(SharedMemoryTest, MovedStreamLeavesNothingBehind) {
  server::ServerProcess process({{"--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0",
                                  absl::StrCat("--memory_listen=unix:", SocketPath("moved_call"))},
                                 {},
                                 0});
  const std::string address = process.Serving("listen");
  const auto stays = Connect(WithoutRowMemory({address}));
  EXPECT_EQ(ConnectionsTo(address), 1);
  const auto moves = Connect(MakeOptions(TransportKind::kAuto, {address}));
  EXPECT_EQ(moves->transport_in_use().kind, TransportKind::kRing);
  const std::string metrics = process.Serving("metrics");
  const auto ended = [&](const char* how) {
    return server::Metric(metrics, absl::StrCat("sortition_streams_ended_total{how=\"", how, "\",transport=\"tcp\"}"));
  };
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while ((ConnectionsTo(address) != 1 || ended("by client") != 1) && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_EQ(ConnectionsTo(address), 1);
  EXPECT_EQ(ended("by client"), 1);
  EXPECT_EQ(ended("abandoned"), 0);
}

// The memory socket would not know to whom the token belongs.
TEST(SharedMemoryTest, StreamWithTokenStaysOnGrpc) {
  const auto server = StartSharing("token");
  client::ClientOptions options = MakeOptions(TransportKind::kAuto, {server->address()});
  options.transport.token = "somebody";
  const auto client = Connect(options);
  ExpectGrpc(*client, /*row_memory=*/true);
  EXPECT_THAT(client->transport_in_use().note, ::testing::HasSubstr("tokens"));
}

TEST(SharedMemoryTest, RowTooLargeForRingMovesStreamBack) {
  constexpr uint32_t kVocabulary = 600000;  // 2.4 MB a row
  const auto server = StartSharing("large");
  const auto client = Connect(MakeOptions(TransportKind::kAuto, {server->address()}));
  ASSERT_EQ(client->transport_in_use().kind, TransportKind::kRing);
  client::SequenceOptions options;
  options.request_id = "large";
  options.vocabulary_size = kVocabulary;
  options.parameters.set_temperature(0);
  const auto sequence = client->Open(options);
  ASSERT_TRUE(sequence.ok());
  std::vector<float> row(kVocabulary);
  for (const uint32_t largest : {7u, 599999u}) {
    row[largest] = 1;
    const auto outcomes = client->Step({v1::DTYPE_F32, kVocabulary, {{sequence->get(), row.data()}}});
    ASSERT_TRUE(outcomes.ok()) << outcomes.status();
    const auto* draw = std::get_if<v1::DrawResult>(&outcomes->front());
    ASSERT_NE(draw, nullptr);
    EXPECT_EQ(draw->token(), largest);
    row[largest] = 0;
  }
  ExpectGrpc(*client, /*row_memory=*/true);
  EXPECT_THAT(client->transport_in_use().note, ::testing::HasSubstr("did not fit a ring"));
}

TEST(SharedMemoryTest, RingServerDeathChangesNoToken) {
  auto first = StartSharing("first_ring");
  const auto second = StartSharing("second_ring");
  const auto client = Connect(MakeOptions(TransportKind::kAuto, {first->address(), second->address()}));
  Texts texts(client.get(), "text");
  for (int step = 0; step < 5; ++step) ASSERT_NO_FATAL_FAILURE(texts.Step());
  first.reset();
  for (int step = 0; step < 5; ++step) ASSERT_NO_FATAL_FAILURE(texts.Step());
  EXPECT_EQ(client->transport_in_use().kind, TransportKind::kRing);
}

// Six texts of 4000 bytes a row find room for some of their rows only.
TEST(SharedMemoryTest, RowsWithoutRoomTravelInline) {
  const auto server = StartSharing("room");
  client::ClientOptions options = MakeOptions(TransportKind::kGrpc, {server->address()});
  options.transport.shared_memory_bytes = 8192;
  options.limits.message_bytes = 4000;
  const auto client = Connect(options);
  Texts texts(client.get(), "text");
  for (int step = 0; step < 10; ++step) ASSERT_NO_FATAL_FAILURE(texts.Step());
}

TEST(SharedMemoryTest, RowsAndMasksAreReadInPlace) {
  constexpr uint32_t kVocabulary = 3000;
  const auto server = StartSharing("direct");
  const auto client = Connect(MakeOptions(TransportKind::kGrpc, {server->address()}));
  client::SequenceOptions options;
  options.request_id = "r";
  options.vocabulary_size = kVocabulary;
  options.seed = 5;
  auto opened = client->Open(options);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const auto memory = client->AllocateRows(1 << 20);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_TRUE(memory->shared);
  ReferenceSequence reference(options.parameters, 5, 0, kVocabulary, kVocabulary, {});
  std::vector<uint32_t> mask((kVocabulary + 31) / 32, 0x5555aaaau);
  for (uint64_t step = 0; step < 10; ++step) {
    const std::vector<std::byte> row = MakeRow(v1::DTYPE_BF16, kVocabulary, step);
    std::byte* const place = memory->data.get() + step * 8192;
    std::memcpy(place, row.data(), row.size());
    const auto outcomes = client->Step({v1::DTYPE_BF16, kVocabulary, {{opened->get(), place, 0, mask.data()}}});
    ASSERT_TRUE(outcomes.ok());
    const auto* draw = std::get_if<v1::DrawResult>(&outcomes->front());
    ASSERT_NE(draw, nullptr) << client::Describe(std::get<client::RowError>(outcomes->front()));
    EXPECT_EQ(draw->token(), reference.Step(v1::DTYPE_BF16, row.data(), 0, mask.data()).token());
  }
}

// The server has the step before its rows, so the server itself reports rows that never come.
TEST(SharedMemoryTest, StepsLeaveBeforeRowsAreWritten) {
  constexpr uint32_t kVocabulary = 3000;
  const auto server = StartSharing("early");
  for (const TransportKind kind : {TransportKind::kGrpc, TransportKind::kRing}) {
    const std::string target =
        kind == TransportKind::kRing ? absl::StrCat("unix:", SocketPath("early")) : server->address();
    const auto client = Connect(MakeOptions(kind, {target}));
    client::SequenceOptions options;
    options.request_id = "r";
    options.vocabulary_size = kVocabulary;
    options.seed = 5;
    auto opened = client->Open(options);
    ASSERT_TRUE(opened.ok()) << opened.status();
    const auto memory = client->AllocateRows(1 << 20);
    ASSERT_TRUE(memory.ok() && memory->shared);
    auto* const word = reinterpret_cast<uint32_t*>(memory->data.get());
    std::byte* const place = memory->data.get() + 4096;
    ReferenceSequence reference(options.parameters, 5, 0, kVocabulary, kVocabulary, {});
    client::Batch batch{v1::DTYPE_BF16, kVocabulary, {{opened->get(), place}}};
    for (uint32_t step = 0; step < 10; ++step) {
      const std::vector<std::byte> row = MakeRow(v1::DTYPE_BF16, kVocabulary, step);
      batch.ready = client::ReadyWord{word, step + 1};
      std::thread writer([&] {
        std::memcpy(place, row.data(), row.size());
        std::atomic_ref(*word).store(step + 1, std::memory_order_release);
      });
      const auto outcomes = client->Step(batch);
      writer.join();
      ASSERT_TRUE(outcomes.ok());
      const auto* draw = std::get_if<v1::DrawResult>(&outcomes->front());
      ASSERT_NE(draw, nullptr) << client::Describe(std::get<client::RowError>(outcomes->front()));
      EXPECT_EQ(draw->token(), reference.Step(v1::DTYPE_BF16, row.data(), 0, nullptr).token());
    }
    batch.ready = client::ReadyWord{word, 11};
    client::StepOptions hurried;
    hurried.timeout = absl::Seconds(2);
    const auto outcomes = client->Step(batch, hurried);
    ASSERT_TRUE(outcomes.ok());
    const auto* error = std::get_if<client::RowError>(&outcomes->front());
    ASSERT_NE(error, nullptr);
    EXPECT_EQ(error->reason, v1::DEADLINE_PASSED);
    EXPECT_EQ(error->field, "step.logits.ready");
  }
}

TEST(SharedMemoryTest, WithoutSharedMemoryTheStreamSaysWhy) {
  const auto server = StartServer();
  for (const TransportKind kind : {TransportKind::kAuto, TransportKind::kGrpc}) {
    const auto client = Connect(MakeOptions(kind, {server->address()}));
    ExpectGrpc(*client, /*row_memory=*/false);
    EXPECT_THAT(client->transport_in_use().note, ::testing::HasSubstr("offers no shared memory"));
    EXPECT_FALSE(client->AllocateRows(100)->shared);
  }
}

TEST(SharedMemoryTest, GrpcTransportNeedsNoSharedMemory) {
  const std::string unix_target = absl::StrCat("unix:", SocketPath("stream"));
  const auto server = StartSharing("inline", {absl::StrCat("--listen=127.0.0.1:0,", unix_target)});
  client::ClientOptions any = WithoutRowMemory({server->address()});
  any.transport.kind = TransportKind::kAuto;
  for (const client::ClientOptions& options :
       {any, WithoutRowMemory({server->address()}), WithoutRowMemory({unix_target})}) {
    const auto client = Connect(options);
    ExpectGrpc(*client, /*row_memory=*/false);
    EXPECT_EQ(client->transport_in_use().note, "");
    Texts texts(client.get(), "text");
    for (int step = 0; step < 5; ++step) ASSERT_NO_FATAL_FAILURE(texts.Step());
  }
  EXPECT_FALSE(client::Client::Connect(MakeOptions(TransportKind::kRing, {server->address()})).ok());
  client::ClientOptions ring = WithoutRowMemory({MemoryTarget("inline")});
  ring.transport.kind = TransportKind::kRing;
  const absl::Status refused = client::Client::Connect(ring).status();
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("shared_memory_bytes"));
}

TEST(SharedMemoryTest, ServerDeathChangesNoToken) {
  auto first = StartSharing("first");
  const auto second = StartSharing("second");
  const auto client = Connect(MakeOptions(TransportKind::kGrpc, {first->address(), second->address()}));
  Texts texts(client.get(), "text");
  for (int step = 0; step < 5; ++step) ASSERT_NO_FATAL_FAILURE(texts.Step());
  const auto memory = client->AllocateRows(100);
  ASSERT_TRUE(memory.ok());
  first.reset();
  for (int step = 0; step < 5; ++step) ASSERT_NO_FATAL_FAILURE(texts.Step());
  ExpectGrpc(*client, /*row_memory=*/true);
  memory->data.get()[99] = std::byte{1};  // it is still there
}

// The path that this server names may belong to another server on another machine; here it belongs to one that has
// moved.
TEST(SharedMemoryTest, ForeignServerAtPathIsNotUsed) {
  const auto server = StartSharing("moved");
  ASSERT_EQ(rename(SocketPath("moved").c_str(), SocketPath("away").c_str()), 0);
  const auto other = StartSharing("moved");
  const auto client = Connect(MakeOptions(TransportKind::kAuto, {server->address()}));
  ExpectGrpc(*client, /*row_memory=*/false);
  EXPECT_THAT(client->transport_in_use().note, ::testing::HasSubstr("another server"));
  EXPECT_FALSE(client->AllocateRows(100)->shared);
  Texts texts(client.get(), "text");
  for (int step = 0; step < 5; ++step) ASSERT_NO_FATAL_FAILURE(texts.Step());
  EXPECT_EQ(unlink(SocketPath("away").c_str()), 0);
}

// Worker and server have only a folder in common.
TEST(ContainerTest, MemoryIsSharedAcrossContainers) {
  setenv("CONTAINED", "/bin/true", 1);
  if (std::system(CONTAINER) != 0) GTEST_SKIP() << "needs the right to namespaces, unshare and ip";
  setenv("CONTAINED", SORTITIOND, 1);
  const std::string target = absl::StrCat("unix:", SocketPath("contained"));
  const auto server =
      process::ServerProcess::Start(CONTAINER,
                                    {absl::StrCat("--listen=127.0.0.1:0,", target),
                                     absl::StrCat("--memory_listen=", MemoryTarget("contained_memory"))},
                                    ::testing::TempDir() + "sortitiond.log");
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_FALSE(client::Client::Connect(MakeOptions(TransportKind::kGrpc, {(*server)->address()})).ok())
      << "its network is its own";
  for (const auto& [kind, at] :
       {std::pair(TransportKind::kGrpc, target), std::pair(TransportKind::kRing, MemoryTarget("contained_memory"))}) {
    const auto client = Connect(MakeOptions(kind, {at}));
    EXPECT_EQ(client->transport_in_use().kind, kind);
    EXPECT_TRUE(client->transport_in_use().row_memory);
    Texts texts(client.get(), absl::StrCat("text ", static_cast<int>(kind)));
    for (int step = 0; step < 10; ++step) ASSERT_NO_FATAL_FAILURE(texts.Step());
  }
}

TEST(RingTest, TextsEqualReference) {
  const auto server = StartSharing("ring");
  const auto client = Connect(MakeOptions(TransportKind::kRing, {MemoryTarget("ring")}));
  EXPECT_EQ(client->transport_in_use().kind, TransportKind::kRing);
  Texts texts(client.get(), "text");
  for (int step = 0; step < 20; ++step) ASSERT_NO_FATAL_FAILURE(texts.Step());
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      Texts more(client.get(), absl::StrCat("thread ", t), 3);
      for (int step = 0; step < 15 && !::testing::Test::HasFatalFailure(); ++step) more.Step();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(server->Stop(absl::Seconds(20)).ok());
}

// Rows that find no room in the shared memory travel in the ring, which holds several of them.
TEST(RingTest, RowsTravelInTheRing) {
  const auto server = StartSharing("ring_rows");
  client::ClientOptions options = MakeOptions(TransportKind::kRing, {MemoryTarget("ring_rows")});
  options.transport.shared_memory_bytes = 1;
  options.transport.ring_spin = absl::ZeroDuration();
  const auto client = Connect(options);
  Texts texts(client.get(), "text");
  for (int step = 0; step < 10; ++step) ASSERT_NO_FATAL_FAILURE(texts.Step());
}

TEST(RingTest, ServerDeathChangesNoToken) {
  auto first = StartSharing("ring_first");
  const auto second = StartSharing("ring_second");
  const auto client =
      Connect(MakeOptions(TransportKind::kRing, {MemoryTarget("ring_first"), MemoryTarget("ring_second")}));
  Texts texts(client.get(), "text");
  for (int step = 0; step < 5; ++step) ASSERT_NO_FATAL_FAILURE(texts.Step());
  first.reset();
  for (int step = 0; step < 5; ++step) ASSERT_NO_FATAL_FAILURE(texts.Step());
}

absl::Duration ProcessorTime(clockid_t clock) {
  timespec time = {};
  EXPECT_EQ(clock_gettime(clock, &time), 0);
  return absl::DurationFromTimespec(time);
}

// Each end may spin for messages that come soon. If they do not come soon it must sleep at once, or every pause of a
// model would cost a processor on both sides.
TEST(RingTest, PausesBetweenStepsCostNoCpu) {
  constexpr absl::Duration kSpin = absl::Milliseconds(20);
  constexpr int kSteps = 20;
  const auto server = StartSharing("ring_slow", {absl::StrCat("--ring_spin=", absl::FormatDuration(kSpin))});
  client::ClientOptions options = MakeOptions(TransportKind::kRing, {MemoryTarget("ring_slow")});
  options.transport.ring_spin = kSpin;
  const auto client = Connect(options);
  Texts texts(client.get(), "text", 1);
  clockid_t of_server;
  ASSERT_EQ(clock_getcpuclockid(server->process().pid(), &of_server), 0);
  const absl::Duration own_before = ProcessorTime(CLOCK_PROCESS_CPUTIME_ID);
  const absl::Duration server_before = ProcessorTime(of_server);
  for (int step = 0; step < kSteps; ++step) {
    absl::SleepFor(kSpin * 1.5);
    ASSERT_NO_FATAL_FAILURE(texts.Step());
  }
  // Half the cost of spinning all the time. The first wait cannot be predicted and is spun through.
  const absl::Duration most = kSteps * kSpin / 2;
  EXPECT_LT(ProcessorTime(CLOCK_PROCESS_CPUTIME_ID) - own_before, most);
  EXPECT_LT(ProcessorTime(of_server) - server_before, most);
}

TEST(RingTest, AbsentServerErrorNamesTarget) {
  const auto client = client::Client::Connect(MakeOptions(TransportKind::kRing, {MemoryTarget("nobody")}));
  ASSERT_FALSE(client.ok());
  EXPECT_THAT(std::string(client.status().message()), ::testing::HasSubstr("nobody"));
}

}  // namespace
}  // namespace sortition::testing::shared_memory_test
