// The guard over fake calls and a clock that stands still: rounds, pauses, their ends, and the ends of connections.
#include "service/net/http2_guard.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/raw_http2.h"
#include "tests/support/fake_clock.h"

namespace sortition::server::http2_guard_test {
namespace {

constexpr size_t kReadBytes = 256 << 10;

// The socket behind the fake calls. One test uses it at a time.
struct FakeSocket {
  std::string bytes;     // that come first
  uint64_t payload = 0;  // bytes of one frame's payload that come after them
  bool is_dry = true;    // no more comes; otherwise the frame is followed by others like it, without end
  int looks = 0;         // reads that reached the socket
  std::vector<uint32_t> armed;
};
FakeSocket* fake = nullptr;

ssize_t FakeReceive(int, msghdr* message, int) {
  ++fake->looks;
  size_t room = 0;
  for (size_t i = 0; i < message->msg_iovlen; ++i) room += message->msg_iov[i].iov_len;
  auto* const to = static_cast<char*>(message->msg_iov[0].iov_base);
  if (fake->bytes.empty() && fake->payload == 0 && !fake->is_dry) {
    // The header of the longest frame; its payload is not written, since the guard does not read it.
    fake->payload = (1 << 24) - 1;
    fake->bytes.assign("\xff\xff\xff\0\0\0\0\0\1", 9);
  }
  if (!fake->bytes.empty()) {
    const size_t count = std::min(room, fake->bytes.size());
    std::memcpy(to, fake->bytes.data(), count);
    fake->bytes.erase(0, count);
    return static_cast<ssize_t>(count);
  }
  if (fake->payload > 0) {
    const uint64_t count = std::min<uint64_t>(room, fake->payload);
    fake->payload -= count;
    return static_cast<ssize_t>(count);
  }
  errno = EAGAIN;
  return -1;
}

int FakeEpoll(int, int operation, int, epoll_event* event) {
  EXPECT_EQ(operation, EPOLL_CTL_MOD);
  fake->armed.push_back(event->events);
  return 0;
}

constexpr Http2Guard::Calls kCalls = {
    .recvmsg = FakeReceive, .epoll_ctl = FakeEpoll, .ssl_read = nullptr, .getpeername = nullptr};

class Http2GuardTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kPolled = EPOLLIN | EPOLLOUT | EPOLLET;

  explicit Http2GuardTest(Http2Guard::Wire wire = Http2Guard::Wire::kPlain) {
    fake = &socket_;
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    client_ = service::Descriptor(ends[0]);
    server_ = service::Descriptor(ends[1]);
    Open(wire);
  }
  ~Http2GuardTest() override {
    guard_.OnClose(fd());
    fake = nullptr;
  }

  int fd() const { return server_.get(); }
  void Open(Http2Guard::Wire wire, bool is_stranger = false) {
    guard_.Add(fd(), wire, events_);
    ++opened_;
    if (!is_stranger) guard_.AddCaller(absl::StrCat("unix-abstract:", Http2Guard::UnixPeer(opened_)));
    epoll_event event = {.events = kPolled, .data = {}};
    guard_.OnPoll(kCalls, 3, EPOLL_CTL_ADD, fd(), &event);
  }
  // Reads as gRPC does. Returns the number of bytes; -1 for none yet.
  ssize_t Read() {
    iovec piece = {buffer_.data(), buffer_.size()};
    msghdr message = {};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    errno = 0;
    const ssize_t count = guard_.Receive(kCalls, fd(), &message, 0);
    if (count < 0) {
      EXPECT_EQ(errno, EAGAIN);
    }
    EXPECT_EQ(piece.iov_len, buffer_.size());
    return count;
  }
  // Reads until nothing comes. Returns how much has come.
  uint64_t ReadRound() {
    uint64_t round = 0;
    for (ssize_t count = Read(); count > 0; count = Read()) round += static_cast<uint64_t>(count);
    return round;
  }
  bool IsEnded() {
    pollfd polled = {client_.get(), POLLIN, 0};
    return poll(&polled, 1, 0) == 1;
  }
  static std::string Calls(uint32_t first, int count) {
    std::string bytes;
    for (int i = 0; i < count; ++i, first += 2) {
      bytes += Http2Frame(FrameType::kHeaders, kEndHeaders, first, CallHeaders("/a/b"));
    }
    return bytes;
  }

  uint64_t opened_ = 0;  // the number of the connection that is open
  FakeSocket socket_;
  testing::FakeClock clock_;
  Http2Guard guard_{&clock_};
  const std::shared_ptr<GuardEvents> events_ = std::make_shared<GuardEvents>();
  service::Descriptor client_;
  service::Descriptor server_;
  std::vector<char> buffer_ = std::vector<char>(kReadBytes);
};

std::string Acknowledged() { return Http2Start() + Http2Frame(FrameType::kSettings, 1, 0, ""); }

// Another connection of the client has its turn: this one is read again when that one's message has ended.
TEST_F(Http2GuardTest, ConnectionsOfAClientTakeTurns) {
  service::Limits limits;
  limits.client_received_bytes = 4 << 20;
  const auto account = std::make_shared<service::ClientAccount>("a", limits, &clock_);
  Arrivals other;
  const uint64_t others = other.BeginRead(account);
  const auto arrivals = guard_.AddCaller(absl::StrCat("unix-abstract:", Http2Guard::UnixPeer(opened_)));
  const uint64_t read = arrivals->BeginRead(account);
  const std::string piece = std::string("\0\0\xf\0\0", 5) + std::string(Arrivals::kShortBytes, 'x');
  socket_.bytes = Acknowledged() + Http2Frame(FrameType::kHeaders, kEndHeaders, 1, CallHeaders("/a/b")) +
                  Http2Frame(FrameType::kData, 0, 1, piece);
  ASSERT_GT(ReadRound(), piece.size());
  ASSERT_TRUE(other.Set(limits.client_received_bytes / 2));
  ASSERT_TRUE(other.MayReceive(clock_.Now()));
  socket_.bytes = Http2Frame(FrameType::kData, 0, 1, "x");
  EXPECT_EQ(ReadRound(), 0u);
  guard_.Tick();
  EXPECT_EQ(ReadRound(), 0u);
  other.EndRead(others);
  const size_t armed = socket_.armed.size();
  guard_.Tick();
  EXPECT_EQ(socket_.armed.size(), armed + 1);
  EXPECT_GT(ReadRound(), 0u);
  arrivals->EndRead(read);
}

// Three GiB in a socket that never runs dry: no round is longer than the bound and one read, and after each the socket
// is armed so that the rest is read.
TEST_F(Http2GuardTest, RoundsEndHoweverMuchComes) {
  socket_.bytes = Acknowledged();
  socket_.is_dry = false;
  uint64_t all = 0;
  uint64_t last = 1;
  for (size_t rounds = 1; all < uint64_t{3} << 30; ++rounds) {
    const uint64_t round = ReadRound();
    ASSERT_GT(round + last, 0u) << "a round that ends in a loop of gRPC's ends once more";
    ASSERT_LE(round, Http2Guard::kRoundBytes + kReadBytes);
    ASSERT_EQ(socket_.armed.size(), rounds);
    ASSERT_EQ(socket_.armed.back(), kPolled);
    all += last = round;
  }
  EXPECT_FALSE(IsEnded());
}

// gRPC forgets its estimate only if the first read after it was woken finds nothing.
TEST_F(Http2GuardTest, RoundThatEndsInALoopEndsTwice) {
  socket_.bytes = Acknowledged();
  socket_.is_dry = false;
  buffer_.resize(Http2Guard::kRoundBytes / 2 + 1);
  while (Read() > 0) {
  }
  const int looks = socket_.looks;
  ASSERT_EQ(socket_.armed.size(), 1u);
  if (Read() < 0) {
    EXPECT_EQ(socket_.looks, looks) << "the second end asks the socket nothing";
  }
  EXPECT_GT(Read(), 0);
}

TEST_F(Http2GuardTest, DrySocketEndsTheRoundItself) {
  socket_.bytes = Acknowledged();
  EXPECT_EQ(ReadRound(), Acknowledged().size());
  EXPECT_TRUE(socket_.armed.empty());
}

TEST_F(Http2GuardTest, PausedIsArmedWhenItMayBeRead) {
  socket_.bytes = Acknowledged() + Calls(1, 1000);
  const uint64_t first = ReadRound();
  EXPECT_LT(first, Acknowledged().size() + Calls(1, 1000).size());
  const int looks = socket_.looks;
  EXPECT_EQ(Read(), -1);
  EXPECT_EQ(socket_.looks, looks) << "the bytes stay in the socket";
  guard_.Tick();
  EXPECT_TRUE(socket_.armed.empty());
  clock_.Advance(absl::Seconds(1));
  guard_.Tick();
  EXPECT_EQ(socket_.armed, std::vector<uint32_t>{kPolled});
  guard_.Tick();
  EXPECT_EQ(socket_.armed.size(), 1u) << "once";
  EXPECT_GT(ReadRound(), 0u);
  EXPECT_FALSE(IsEnded());
}

TEST_F(Http2GuardTest, ClosedWhilePausedIsNotArmed) {
  socket_.bytes = Acknowledged() + Calls(1, 1000);
  ReadRound();
  guard_.OnClose(fd());
  clock_.Advance(absl::Seconds(1));
  guard_.Tick();
  EXPECT_TRUE(socket_.armed.empty());
  Open(Http2Guard::Wire::kPlain);  // the number is another connection's now
  guard_.Tick();
  EXPECT_TRUE(socket_.armed.empty());
  socket_.bytes = Acknowledged() + Calls(1, 1);
  EXPECT_EQ(ReadRound(), (Acknowledged() + Calls(1, 1)).size());
}

// Those who flood and leave, again and again, keep no newcomer waiting.
TEST_F(Http2GuardTest, PausedWhosePeerLeftIsOver) {
  socket_.bytes = Acknowledged() + Calls(1, 1000);
  ReadRound();
  client_ = service::Descriptor();
  guard_.Tick();
  EXPECT_EQ(socket_.armed, std::vector<uint32_t>{kPolled});
  EXPECT_EQ(Read(), 0);
}

TEST_F(Http2GuardTest, DebtOfAllNewcomersIsBounded) {
  for (uint32_t i = 0; i < 200; ++i) {
    socket_.bytes = (i == 0 ? Acknowledged() : "") + Calls(1 + 2000 * i, 1000);
    ReadRound();
    guard_.OnClose(fd());
    Open(Http2Guard::Wire::kPlain);
    socket_.bytes = Acknowledged();
    ReadRound();
  }
  clock_.Advance(absl::Seconds(2));
  socket_.bytes = Calls(1, 100);
  EXPECT_GT(ReadRound(), Calls(1, 25).size()) << "more than the connection's own";
}

// A read may bring more calls than the budgets had left. They are a debt; otherwise reads that follow each other
// closely would each bring this number.
TEST_F(Http2GuardTest, CallsBeyondTheBudgetsAreADebt) {
  const double call = static_cast<double>(Calls(1, 1).size());
  for (int i = 0; i < 10; ++i) {  // use up the newcomers' shared budget
    socket_.bytes = Acknowledged() + Calls(1, 1000);
    ReadRound();
    guard_.OnClose(fd());
    Open(Http2Guard::Wire::kPlain);
  }
  socket_.bytes = Acknowledged() + Calls(1, 1000);
  uint64_t read = 0;
  constexpr int kReads = 100;
  constexpr absl::Duration kBetween = absl::Microseconds(50);
  for (int i = 0; i < kReads; ++i) {
    read += ReadRound();
    clock_.Advance(kBetween);
    guard_.Tick();
  }
  const double seconds = absl::ToDoubleSeconds(kReads * kBetween);
  const double budget =
      Http2Guard::kOwnCalls.burst + seconds * (Http2Guard::kOwnCalls.per_second + Http2Guard::kNewCalls.per_second);
  constexpr double kCallsOfOneRead = 6;
  EXPECT_LE(static_cast<double>(read) / call, budget + kCallsOfOneRead);
}

// One sends calls as fast as it may, the other a call now and then: the first one's debts are its own.
TEST_F(Http2GuardTest, OtherConnectionsAreNotPaused) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const service::Descriptor client(ends[0]);
  const service::Descriptor other(ends[1]);
  socket_.bytes = Acknowledged() + Calls(1, 10'000);
  ReadRound();
  guard_.Add(other.get(), Http2Guard::Wire::kPlain, events_);
  FakeSocket others;
  iovec piece = {buffer_.data(), buffer_.size()};
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  for (uint32_t second = 0; second < 60; ++second) {
    others.bytes = (second == 0 ? Acknowledged() : "") + Calls(1 + 2 * second, 1);
    fake = &others;
    EXPECT_GT(guard_.Receive(kCalls, other.get(), &message, 0), 0) << second;
    fake = &socket_;
    clock_.Advance(absl::Seconds(1));
    guard_.Tick();
    ReadRound();
  }
  guard_.OnClose(other.get());
  EXPECT_FALSE(IsEnded());
}

// A connection over TCP on loopback.
struct TcpPair {
  TcpPair() {
    sockaddr_in address = {.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
    socklen_t size = sizeof(address);
    const service::Descriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener.get(), generic, size), 0);
    EXPECT_EQ(listen(listener.get(), 1), 0);
    EXPECT_EQ(getsockname(listener.get(), generic, &size), 0);
    client = service::Descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(client.get(), generic, size), 0);
    server = service::Descriptor(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }
  service::Descriptor client;
  service::Descriptor server;
};

TEST_F(Http2GuardTest, UselessConnectionsHoldTheNext) {
  iovec piece = {buffer_.data(), buffer_.size()};
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  const auto may_read = [&](const TcpPair& pair) {
    socket_.bytes = Acknowledged();
    return guard_.Receive(kCalls, pair.server.get(), &message, 0) > 0;
  };
  const auto add = [&](const TcpPair& pair) { guard_.Add(pair.server.get(), Http2Guard::Wire::kPlain, events_); };
  const TcpPair useful, useless, held, later;
  add(useful);
  add(useless);
  EXPECT_TRUE(may_read(useful) && may_read(useless)) << "no connection has closed before them";
  sockaddr_in peer = {};
  socklen_t size = sizeof(peer);
  ASSERT_EQ(getpeername(useful.server.get(), reinterpret_cast<sockaddr*>(&peer), &size), 0);
  guard_.AddAnswer(absl::StrCat("ipv4:127.0.0.1:", ntohs(peer.sin_port)));
  guard_.OnClose(useful.server.get());
  const TcpPair after_useful;
  add(after_useful);
  EXPECT_TRUE(may_read(after_useful));
  guard_.OnClose(useless.server.get());
  add(held);
  EXPECT_FALSE(may_read(held));
  EXPECT_GT(Read(), 0) << "the peer of another address";
  clock_.Advance(Http2Guard::kHold);
  EXPECT_TRUE(may_read(held));
  EXPECT_TRUE(may_read(after_useful)) << "what is open is not held";
  clock_.Advance(Http2Guard::kUselessRemembered);
  add(later);
  EXPECT_TRUE(may_read(later));
  for (const TcpPair* pair : {&after_useful, &held, &later}) guard_.OnClose(pair->server.get());
}

TEST_F(Http2GuardTest, ExcessEndsTheConnectionAndIsNamed) {
  socket_.bytes = Acknowledged();
  for (int i = 0; i < 100; ++i) socket_.bytes += Http2Frame(FrameType::kSettings, 0, 0, "");
  EXPECT_FALSE(IsEnded());
  EXPECT_EQ(ReadRound(), 0u);
  EXPECT_TRUE(IsEnded());
  EXPECT_EQ(Read(), 0) << "gRPC is told of an end";
  std::vector<GuardEvents::Ended> named;
  EXPECT_EQ(events_->Take(&named).at(static_cast<size_t>(FrameExcess::kSettings)), 1u);
  ASSERT_EQ(named.size(), 1u);
  EXPECT_EQ(named[0].excess, FrameExcess::kSettings);
}

// A stranger's messages that have no end: the connection waits, and is ended once it has waited for long.
TEST_F(Http2GuardTest, UnfinishedMessagesEndTheConnection) {
  guard_.OnClose(fd());
  Open(Http2Guard::Wire::kPlain, /*is_stranger=*/true);
  const FrameLimits limits;
  const std::string piece = Http2Frame(FrameType::kData, 0, 1, std::string(16'384, 'x'));
  socket_.bytes = Acknowledged() + Calls(1, 1);
  for (uint64_t sent = 0; sent < 2 * limits.unfinished_bytes; sent += piece.size()) socket_.bytes += piece;
  uint64_t read = 0;
  const auto serve = [&](absl::Duration time) {
    for (int i = 0; i < 100; ++i) {
      read += ReadRound();
      clock_.Advance(time / 100);
      guard_.Tick();
    }
  };
  serve(limits.unfinished_wait / 2);
  EXPECT_GT(read, limits.unfinished_bytes);
  EXPECT_LT(read, limits.unfinished_bytes + 2 * limits.new_read_bytes);
  EXPECT_FALSE(IsEnded());
  serve(limits.unfinished_wait);
  EXPECT_TRUE(IsEnded());
  std::vector<GuardEvents::Ended> named;
  EXPECT_EQ(events_->Take(&named).at(static_cast<size_t>(FrameExcess::kUnfinished)), 1u);
}

TEST_F(Http2GuardTest, OtherDescriptorsAreReadAsTheyAre) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const service::Descriptor client(ends[0]);
  const service::Descriptor other(ends[1]);
  socket_.bytes = "not HTTP/2";
  iovec piece = {buffer_.data(), buffer_.size()};
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  EXPECT_EQ(guard_.Receive(kCalls, other.get(), &message, 0), 10);
}

class TlsGuardTest : public Http2GuardTest {
 protected:
  TlsGuardTest() : Http2GuardTest(Http2Guard::Wire::kTls) {}
};

// Bytes that come with a handshake are passed on unseen.
TEST_F(TlsGuardTest, UnseenBytesComeInSmallPieces) {
  socket_.is_dry = false;
  uint64_t all = 0;
  for (size_t rounds = 1; rounds <= 100; ++rounds) {
    const uint64_t round = ReadRound();
    ASSERT_LT(round, 2 * Http2Guard::kHandshakeRead);
    ASSERT_EQ(socket_.armed.size(), rounds);
    all += round;
  }
  EXPECT_GT(all, 100u << 10);
}

// The guard finds a session's connection by the client's random, so a second connection of the same one is ended.
TEST_F(TlsGuardTest, RepeatedRandomIsEnded) {
  socket_.bytes = std::string(11, '\0') + std::string(Http2Guard::kRandomBytes, 'r');
  const std::string greeting = socket_.bytes;
  EXPECT_EQ(ReadRound(), greeting.size());
  EXPECT_FALSE(IsEnded());
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const service::Descriptor client(ends[0]);
  const service::Descriptor other(ends[1]);
  guard_.Add(other.get(), Http2Guard::Wire::kTls, events_);
  socket_.bytes = greeting;
  iovec piece = {buffer_.data(), buffer_.size()};
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  EXPECT_EQ(guard_.Receive(kCalls, other.get(), &message, 0), 0);
  guard_.OnClose(other.get());
  std::vector<GuardEvents::Ended> named;
  EXPECT_EQ(events_->Take(&named).at(static_cast<size_t>(FrameExcess::kHiddenFrames)), 1u);
}

}  // namespace
}  // namespace sortition::server::http2_guard_test
