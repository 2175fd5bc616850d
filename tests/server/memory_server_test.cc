// The memory socket with clients of every kind: correct requests, and incorrect ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cpp/transport/memory_link.h"
#include "client/cpp/transport/unix_socket.h"
#include "client/cpp/transport/wire_errors.h"
#include "kernels/row.h"
#include "service/limits.h"
#include "service/memory/ring.h"
#include "tests/server/memory_socket.h"
#include "tests/server/test_server.h"
#include "tests/server/test_stream.h"
#include "tests/support/messages.h"

namespace sortition::server::memory_server_test {
namespace {

using client::ConnectUnix;
using client::MemoryLink;
using service::Descriptor;

constexpr uint64_t kPage = 4096;
constexpr uint64_t kMostBytes = 10 << 20;

class MemoryServerTest : public ::testing::Test {
 protected:
  MemoryServerTest() : server_(WithMemory(address_)) {}

  static Config WithMemory(const std::string& address) {
    Config config = TestConfig();
    config.memory_listen = address;
    config.limits.max_memory_connections = 3;
    config.limits.max_rings = 2;
    config.limits.connection_memory_bytes = kMostBytes;
    config.limits.max_memory_bytes = 2 * kMostBytes;
    return config;
  }
  std::unique_ptr<MemoryLink> Connect() {
    auto link = MemoryLink::Connect(address_);
    EXPECT_TRUE(link.ok()) << link.status();
    return *std::move(link);
  }
  // A connection whose welcome has been read.
  Descriptor ConnectRaw() {
    auto socket = ConnectUnix(address_, SOCK_SEQPACKET);
    EXPECT_TRUE(socket.ok()) << socket.status();
    EXPECT_TRUE(Receive(*socket).has_welcome());
    return *std::move(socket);
  }
  // An empty message once the server has ended the connection.
  static v1::MemoryResponse Receive(const Descriptor& socket) {
    std::array<char, 4096> packet;
    const ssize_t size = recv(socket.get(), packet.data(), packet.size(), 0);
    v1::MemoryResponse response;
    EXPECT_TRUE(size <= 0 || response.ParseFromArray(packet.data(), static_cast<int>(size)));
    return response;
  }
  static void Send(const Descriptor& socket, const std::string& packet) {
    EXPECT_EQ(send(socket.get(), packet.data(), packet.size(), MSG_NOSIGNAL), static_cast<ssize_t>(packet.size()));
  }
  bool UseBecomes(uint64_t bytes, uint32_t connections) {
    return Becomes([&] {
      const service::MemoryUse use = server_.engine().regions().use();
      return use.bytes == bytes && use.connections == connections;
    });
  }

  const std::string address_ = absl::StrCat("unix:", ::testing::TempDir(), "sortition_", getpid(), "_",
                                            ::testing::UnitTest::GetInstance()->current_test_info()->name());
  TestServer server_;
};

TEST_F(MemoryServerTest, StreamWelcomeNamesTheSocket) {
  TestStream stream(server_.Connect());
  v1::StreamRequest hello;
  hello.mutable_hello()->set_worker_session("worker");
  stream.Send(hello);
  EXPECT_EQ(stream.ReceiveOne().welcome().memory_address(), address_);
}

TEST_F(MemoryServerTest, BothWelcomesNameTheServer) {
  TestStream stream(server_.Connect());
  v1::StreamRequest hello;
  hello.mutable_hello()->set_worker_session("worker");
  stream.Send(hello);
  const std::string instance = stream.ReceiveOne().welcome().server_instance();
  EXPECT_EQ(instance.size(), service::RegionTable::kInstanceBytes);
  EXPECT_EQ(Connect()->server_instance(), instance);
  EXPECT_NE(TestServer().engine().regions().instance(), instance);
}

// Holds under any mode of the socket's path.
TEST_F(MemoryServerTest, ForeignUserIsNotServed) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  ASSERT_EQ(chmod(address_.substr(sizeof("unix:") - 1).c_str(), 0666), 0);
  constexpr uid_t kNobody = 65534;
  ASSERT_EQ(syscall(SYS_setresuid, -1, kNobody, -1), 0);  // only this thread's
  const auto stranger = ConnectUnix(address_, SOCK_SEQPACKET);
  ASSERT_EQ(syscall(SYS_setresuid, -1, 0, -1), 0);
  ASSERT_TRUE(stranger.ok()) << stranger.status();
  EXPECT_FALSE(Receive(*stranger).has_welcome());
  EXPECT_TRUE(server_.log_lines().Await("connection_refused"));
  EXPECT_TRUE(UseBecomes(0, 0));
}

TEST_F(MemoryServerTest, RegionsAreMappedAndReleased) {
  const auto link = Connect();
  EXPECT_EQ(link->token().size(), service::RegionTable::kTokenBytes);
  EXPECT_EQ(link->most_bytes(), kMostBytes);
  for (int i = 0; i < 200; ++i) {
    const auto region = link->Register(kPage);
    ASSERT_TRUE(region.ok()) << region.status();
    (*region)->bytes()[kPage - 1] = std::byte{1};
    link->Unregister((*region)->id());
  }
  EXPECT_TRUE(UseBecomes(0, 1));
}

TEST_F(MemoryServerTest, RefusalIsTypedAndKeepsConnection) {
  const auto link = Connect();
  const auto large = link->Register(kMostBytes + 1);
  ASSERT_FALSE(large.ok());
  EXPECT_EQ(client::ErrorOf(large.status())->reason, v1::OUT_OF_RANGE);
  const auto fits = link->Register(kMostBytes);
  ASSERT_TRUE(fits.ok()) << fits.status();
  EXPECT_EQ(client::ErrorOf(link->Register(1).status())->reason, v1::OVERLOADED);
  link->Unregister((*fits)->id() + 77);
  EXPECT_TRUE(server_.log_lines().Await("memory_refused", 2));
}

TEST_F(MemoryServerTest, RegionReleasedTwiceIsAnsweredTwice) {
  auto socket = ConnectUnix(address_, SOCK_SEQPACKET);
  ASSERT_TRUE(socket.ok()) << socket.status();
  const timeval timeout = {20, 0};
  ASSERT_EQ(setsockopt(socket->get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)), 0);
  const std::string token = Receive(*socket).welcome().token();
  v1::MemoryRequest request;
  request.mutable_register_region()->set_bytes(kPage);
  Send(*socket, request.SerializeAsString());
  const uint64_t id = Receive(*socket).registered().region_id();
  auto read = server_.engine().regions().Find(token)->Find(id);
  ASSERT_NE(read, nullptr);
  request.mutable_unregister_region()->set_region_id(id);
  Send(*socket, request.SerializeAsString());
  Send(*socket, request.SerializeAsString());
  EXPECT_EQ(Receive(*socket).error().reason(), v1::UNKNOWN_REGION);
  read.reset();
  EXPECT_EQ(Receive(*socket).unregistered().region_id(), id);
}

TEST_F(MemoryServerTest, DeadPeersLeaveNothingBehind) {
  const size_t descriptors = OpenDescriptors();
  for (int i = 0; i < 20; ++i) {
    const auto link = Connect();
    ASSERT_TRUE(link->Register(kMostBytes).ok());
    ASSERT_TRUE(Becomes([&] { return server_.engine().regions().use().bytes >= kMostBytes; }));
  }
  EXPECT_TRUE(UseBecomes(0, 0));
  EXPECT_TRUE(Becomes([&] { return OpenDescriptors() == descriptors; })) << OpenDescriptors();
}

TEST_F(MemoryServerTest, ConnectionBeyondLimitIsRefused) {
  const auto one = Connect();
  const auto two = Connect();
  auto three = Connect();
  const auto four = MemoryLink::Connect(address_);
  ASSERT_FALSE(four.ok());
  EXPECT_EQ(client::ErrorOf(four.status())->reason, v1::OVERLOADED);
  three.reset();
  EXPECT_TRUE(UseBecomes(0, 2));
  Connect();
}

TEST_F(MemoryServerTest, MalformedRequestEndsConnection) {
  for (const std::string& packet : {std::string("\xff\xff\xff", 3), std::string(5000, '\0'), std::string(1, '\x0a')}) {
    const Descriptor socket = ConnectRaw();
    Send(socket, packet);
    EXPECT_EQ(Receive(socket).error().reason(), v1::MALFORMED_MESSAGE);
    EXPECT_EQ(Receive(socket).kind_case(), v1::MemoryResponse::KIND_NOT_SET) << "the connection is over";
  }
  EXPECT_TRUE(UseBecomes(0, 0));
}

TEST_F(MemoryServerTest, UnknownFieldsAndEmptyRequestsAreRefused) {
  const Descriptor socket = ConnectRaw();
  Send(socket, "\x98\x06\x01");  // field 99
  EXPECT_EQ(Receive(socket).error().reason(), v1::UNKNOWN_FIELD);
  v1::MemoryRequest request;
  request.mutable_unregister_region()->set_region_id(1);
  Send(socket, request.SerializeAsString());
  EXPECT_EQ(Receive(socket).error().reason(), v1::UNKNOWN_REGION);
}

// The kernel would install the descriptors in the server's table if the message's buffer had room for them.
TEST_F(MemoryServerTest, DescriptorFloodIsRefused) {
  const Descriptor socket = ConnectRaw();
  const size_t before = OpenDescriptors();
  v1::MemoryRequest request;
  request.mutable_unregister_region()->set_region_id(1);
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(SendFlood(socket.get(), request.SerializeAsString(), STDERR_FILENO, 200));
    EXPECT_EQ(Receive(socket).error().reason(), v1::UNKNOWN_REGION);
    EXPECT_EQ(OpenDescriptors(), before);
  }
}

// Its answers fill the socket's buffer, and then it is let go.
TEST_F(MemoryServerTest, UnreadingPeerLosesConnection) {
  const Descriptor socket = ConnectRaw();
  v1::MemoryRequest request;
  request.mutable_unregister_region()->set_region_id(1);
  const std::string packet = request.SerializeAsString();
  EXPECT_TRUE(Becomes([&] {
    for (int i = 0; i < 100; ++i) send(socket.get(), packet.data(), packet.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return server_.engine().regions().use().connections == 0;
  }));
}

// A stream over rings, by hand.
class RawRing {
 public:
  explicit RawRing(MemoryLink* link) {
    auto opened = link->OpenRing();
    EXPECT_TRUE(opened.ok()) << opened.status();
    region_ = *std::move(opened);
    pair_.emplace(region_->bytes().data());
    writer_.emplace(pair_->request_words, pair_->request_bytes);
    reader_.emplace(pair_->answer_words, pair_->answer_bytes);
  }
  void Send(const v1::StreamRequest& request) { SendBytes(request.SerializeAsString()); }
  void SendBytes(const std::string& bytes) {
    const std::span<const std::byte> part = std::as_bytes(std::span(bytes.data(), bytes.size()));
    EXPECT_EQ(writer_->Put({&part, 1}), service::RingStatus::kDone);
  }
  v1::StreamResponse Receive() {
    std::string bytes;
    EXPECT_TRUE(Becomes([&] { return reader_->Take(&bytes) == service::RingStatus::kDone; }));
    v1::StreamResponse response;
    EXPECT_TRUE(response.ParseFromString(bytes));
    return response;
  }
  service::RingPair& pair() { return *pair_; }

 private:
  std::unique_ptr<client::MappedRegion> region_;
  std::optional<service::RingPair> pair_;
  std::optional<service::RingWriter> writer_;
  std::optional<service::RingReader> reader_;
};

v1::StreamRequest MakeHello(const std::string& worker_session) {
  v1::StreamRequest request;
  request.mutable_hello()->set_worker_session(worker_session);
  return request;
}

TEST_F(MemoryServerTest, RingFollowsStreamRules) {
  auto link = Connect();
  RawRing ring(link.get());
  v1::StreamRequest early;
  early.mutable_close()->set_request_id("r");
  ring.Send(early);
  EXPECT_EQ(ring.Receive().closed().error().reason(), v1::PROTOCOL_VIOLATION);
  ring.SendBytes("no message");
  EXPECT_EQ(ring.Receive().rejected().error().reason(), v1::MALFORMED_MESSAGE);
  ring.Send(MakeHello("worker"));
  EXPECT_EQ(ring.Receive().welcome().memory_address(), address_);
  EXPECT_EQ(client::ErrorOf(link->OpenRing().status())->reason, v1::CONTRADICTION) << "one for each connection";
  link.reset();
  EXPECT_TRUE(server_.log_lines().Await("stream_open"));
  EXPECT_TRUE(server_.log_lines().Await("stream_close"));
  for (const std::string& line : server_.log_lines().all()) {
    EXPECT_THAT(line, ::testing::HasSubstr(absl::StrCat("\"peer\":\"ring:uid:", getuid(), "\"")));
    EXPECT_THAT(line, ::testing::HasSubstr("\"worker_session\":\"worker\""));
  }
}

TEST_F(MemoryServerTest, BrokenRingIsClosed) {
  for (int way = 0; way < 3; ++way) {
    const auto link = Connect();
    RawRing ring(link.get());
    ring.Send(MakeHello("worker"));
    EXPECT_TRUE(ring.Receive().has_welcome());
    if (way == 0) ring.pair().request_words->written = 12345;
    if (way == 1) ring.pair().answer_words->read = ~uint64_t{0};
    if (way == 2) std::memset(ring.pair().request_bytes, 0xff, service::kRingBytes);
    if (way == 1) {
      ring.Send(MakeHello("again"));  // the answer meets the word
    } else if (way == 2) {
      ring.pair().request_words->written += 64;
    }
    service::WakeRingReader(ring.pair().request_words);
    EXPECT_TRUE(Becomes([&] { return !link->IsConnected(); })) << way;
  }
  EXPECT_TRUE(UseBecomes(0, 0));
}

// The largest answers that a row may have fit a ring, piece by piece.
TEST_F(MemoryServerTest, LargeAnswerFitsThroughRing) {
  constexpr uint32_t kVocabulary = 1000;
  const auto link = Connect();
  RawRing ring(link.get());
  ring.Send(MakeHello("worker"));
  EXPECT_TRUE(ring.Receive().has_welcome());
  v1::OpenSequence open = testing::MakeOpen("a", 1, kVocabulary);
  open.mutable_parameters()->mutable_raw_logprobs()->set_top(kernels::kMaxTopLogprobs);
  open.mutable_parameters()->mutable_processed_logprobs()->set_top(kernels::kMaxTopLogprobs);
  for (uint32_t id = 0; id < kVocabulary; ++id) open.mutable_parameters()->add_logprob_token_ids(id);
  ring.Send(testing::Message(open));
  EXPECT_TRUE(ring.Receive().opened().has_state());
  testing::StepBuilder step(1, kVocabulary);
  v1::Score* const score = step.AddRow("a", 1, 0, testing::F32Peak(kVocabulary, 0)).mutable_score();
  score->add_tokens(0);
  for (uint32_t token = 1; token < service::kMaxScoreTokens; ++token) {
    step.AddTensorRow(testing::F32Peak(kVocabulary, token));
    score->add_tokens(token);
  }
  ring.Send(step.Build());
  v1::ScoreResult whole;
  do {
    const v1::StreamResponse response = ring.Receive();
    ASSERT_TRUE(response.has_results());
    for (const v1::RowResult& row : response.results().rows()) {
      whole.clear_continues();
      whole.MergeFrom(row.score());
    }
  } while (whole.continues());
  ASSERT_EQ(whole.positions_size(), static_cast<int>(service::kMaxScoreTokens));
  for (const v1::Position& position : whole.positions()) {
    const v1::Logprobs& raw = position.raw();
    EXPECT_TRUE(position.has_processed());
    EXPECT_EQ(raw.rank(), 1u);
    EXPECT_EQ(raw.top_tokens_size(), static_cast<int>(kernels::kMaxTopLogprobs));
    EXPECT_EQ(raw.requested_ranks_size(), static_cast<int>(kVocabulary));
  }
}

// A refusal that names tokens of many positions fits a ring; what it does not name asks for the whole row.
TEST_F(MemoryServerTest, LongRefusalFitsThroughRing) {
  constexpr uint32_t kVocabulary = 65'536;
  constexpr int kPositions = 17;
  const auto link = Connect();
  RawRing ring(link.get());
  ring.Send(MakeHello("worker"));
  EXPECT_TRUE(ring.Receive().has_welcome());
  v1::OpenSequence open = testing::MakeOpen("a", 1, kVocabulary);
  for (uint32_t id = 0; id + 10 < kVocabulary; ++id) {
    v1::LogitBias& bias = *open.mutable_parameters()->add_logit_bias();
    bias.set_token(id);
    bias.set_bias(1);
  }
  ring.Send(testing::Message(open));
  EXPECT_TRUE(ring.Receive().opened().has_state());
  v1::StreamRequest request;
  v1::Step& step = *request.mutable_step();
  step.set_batch_id(1);
  v1::StepRow& row = *step.add_rows();
  row.set_request_id("a");
  row.set_step_id(1);
  for (int i = 0; i < kPositions; ++i) {
    row.mutable_score()->add_tokens(kVocabulary - 1);
    row.add_compact()->set_first(1);
  }
  step.mutable_logits()->set_dtype(v1::DTYPE_F32);
  step.mutable_logits()->set_vocabulary_size(kVocabulary);
  step.mutable_logits()->mutable_pairs()->mutable_inline_()->set_payload(0);
  const uint32_t id = kVocabulary - 1;
  const float logit = 1;
  std::string pair(kVocabulary / 16, '\0');  // a shorter message gets a shorter answer
  std::memcpy(pair.data(), &id, 4);
  std::memcpy(pair.data() + 4, &logit, 4);
  request.add_payloads(pair);
  ring.Send(request);
  const v1::StreamResponse response = ring.Receive();
  ASSERT_EQ(response.results().rows_size(), 1) << response.ShortDebugString().substr(0, 500);
  const v1::Error& error = response.results().rows(0).error();
  EXPECT_EQ(error.reason(), v1::ROW_REQUIRED);
  ASSERT_EQ(error.required_size(), kPositions);
  EXPECT_EQ(error.required(0).tokens_size(), static_cast<int>(kVocabulary) - 10);
  EXPECT_EQ(error.required(1).tokens_size(), 0);
}

// Answers that wait for room in the ring come before its end.
TEST_F(MemoryServerTest, DrainedRingDeliversAllAnswers) {
  const auto link = Connect();
  RawRing ring(link.get());
  ring.Send(MakeHello("worker"));
  EXPECT_TRUE(ring.Receive().has_welcome());
  v1::StreamRequest close;  // without its epoch, so that its refusal is longer than it is
  close.mutable_close()->set_request_id(std::string(service::kMaxNameBytes, 'x'));
  ring.Send(close);
  const uint64_t answer_bytes = 8 + (ring.Receive().ByteSizeLong() + 7) / 8 * 8;  // in the ring
  const uint64_t sent = service::kRingBytes / answer_bytes + 100;
  for (uint64_t i = 0; i < sent; ++i) ring.Send(close);
  const service::RingWords& requests = *ring.pair().request_words;
  ASSERT_TRUE(Becomes([&] { return requests.read == requests.written; }));
  std::thread drain([&] { server_.server().Drain(); });
  EXPECT_TRUE(server_.log_lines().Await("drain"));
  uint64_t answers = 0;
  uint64_t notices = 0;  // which may overtake the last answer
  for (uint64_t i = 0; i < sent + 1; ++i) {
    const v1::StreamResponse response = ring.Receive();
    answers += response.has_closed();
    notices += response.has_draining();
  }
  drain.join();
  EXPECT_EQ(answers, sent);
  EXPECT_EQ(notices, 1u);
}

TEST_F(MemoryServerTest, RingsAreCapped) {
  const auto one = Connect();
  RawRing ring(one.get());
  auto two = Connect();
  RawRing last(two.get());
  const auto three = Connect();
  EXPECT_EQ(client::ErrorOf(three->OpenRing().status())->reason, v1::OVERLOADED);
  EXPECT_EQ(server_.server().streams(), 2u);
  two.reset();
  EXPECT_TRUE(Becomes([&] { return three->OpenRing().ok(); })) << "a client that has gone leaves room";
}

TEST_F(MemoryServerTest, NoClientWaitsForTheEndOfARing) {
  auto link = Connect();
  RawRing ring(link.get());
  ring.Send(MakeHello("worker"));
  EXPECT_TRUE(ring.Receive().has_welcome());
  server_.log_lines().Hold("stream_close");
  link.reset();
  EXPECT_TRUE(server_.log_lines().Await("stream_close")) << "the ring's thread ends, and is held there";
  const auto other = Connect();
  EXPECT_TRUE(other->Register(kPage).ok());
  EXPECT_EQ(server_.server().streams(), 1u);
  server_.log_lines().Hold("");
  EXPECT_TRUE(Becomes([&] { return server_.server().streams() == 0; }));
}

TEST_F(MemoryServerTest, RingsAreDrained) {
  const auto link = Connect();
  RawRing ring(link.get());
  ring.Send(MakeHello("worker"));
  EXPECT_TRUE(ring.Receive().has_welcome());
  server_.server().Drain();
  EXPECT_EQ(ring.Receive().draining().cause(), v1::DrainingNotice::CAUSE_SHUTDOWN);
  EXPECT_TRUE(Becomes([&] { return !link->IsConnected(); }));
  const auto late = Connect();
  const auto refused = client::ErrorOf(late->OpenRing().status());
  EXPECT_EQ(refused->reason, v1::DRAINING);
  EXPECT_GT(refused->retry_after, absl::ZeroDuration());
}

TEST_F(MemoryServerTest, StopEndsConnections) {
  const auto link = Connect();
  ASSERT_TRUE(link->Register(kPage).ok());
  server_.server().Stop();
  EXPECT_FALSE(link->Register(kPage).ok());
  EXPECT_EQ(server_.engine().regions().use().bytes, 0u);
}

}  // namespace
}  // namespace sortition::server::memory_server_test
