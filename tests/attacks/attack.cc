// The frames of each attack.
#include "tests/attacks/attack.h"

#include <openssl/ssl.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/check.h"
#include "service/net/listen_socket.h"
#include "tests/attacks/scenario.h"
#include "tests/server/raw_http2.h"

namespace sortition::attacks {
namespace {

using server::FrameType;
using server::Http2Frame;
using server::kEndHeaders;

constexpr uint8_t kEndStream = 1;
constexpr size_t kPiece = 65'536;
constexpr char kStream[] = "/sortition.v1.SamplingService/Stream";
constexpr char kCheck[] = "/grpc.health.v1.Health/Check";

std::string Repeated(const std::string& frame) {
  std::string piece;
  while (piece.size() < kPiece) piece += frame;
  return piece;
}

// The first bytes of a client that has taken the server's settings.
std::string Acknowledged() { return server::Http2Start() + Http2Frame(FrameType::kSettings, 1, 0, ""); }

// The same frames again and again.
class Same : public AttackBytes {
 public:
  explicit Same(const std::string& frame, std::string start = Acknowledged())
      : start_(std::move(start)), piece_(Repeated(frame)) {}
  std::string Start() override { return start_; }
  std::string Next() override { return piece_; }

 private:
  const std::string start_;
  const std::string piece_;
};

// Frames of streams that are opened one after the other.
class Streams : public AttackBytes {
 public:
  using Frames = std::string (*)(uint32_t stream);
  explicit Streams(Frames frames, std::string start = Acknowledged(), size_t piece = kPiece)
      : frames_(frames), start_(std::move(start)), piece_(piece) {}
  std::string Start() override {
    stream_ = 1;
    return start_;
  }
  std::string Next() override {
    std::string piece;
    for (; piece.size() < piece_; stream_ += 2) piece += frames_(stream_);
    return piece;
  }

 private:
  const Frames frames_;
  const std::string start_;
  const size_t piece_;
  uint32_t stream_ = 1;
};

std::string Headers(uint32_t stream, uint8_t flags, std::string_view path) {
  return Http2Frame(FrameType::kHeaders, flags, stream, server::CallHeaders(path));
}

std::string Reset(uint32_t stream) {
  return Http2Frame(FrameType::kReset, 0, stream, std::string_view("\0\0\0\10", 4));
}

// Resets streams only after the server has seen them.
class LateResets : public AttackBytes {
 public:
  std::string Start() override {
    stream_ = 1;
    return Acknowledged();
  }
  std::string Next() override {
    constexpr uint32_t kStreams = 64;
    std::string piece;
    if (std::exchange(resets_, !resets_)) {
      for (uint32_t i = kStreams; i > 0; --i) piece += Reset(stream_ - 2 * i);
    } else {
      for (uint32_t i = 0; i < kStreams; ++i, stream_ += 2) piece += Headers(stream_, kEndHeaders, kStream);
    }
    return piece;
  }
  absl::Duration pause() const override { return absl::Milliseconds(3); }

 private:
  uint32_t stream_ = 1;
  bool resets_ = false;
};

// A literal header "a" that announces a value of 2^31 bytes.
std::string EndlessHeader() {
  std::string start("\0\1a\x7f", 4);
  start += std::string_view("\x81\xff\xff\xff\7", 5);
  return Acknowledged() + Http2Frame(FrameType::kHeaders, 0, 1, start);
}

// A header that enters the table of its sender, then a thousand times two bytes that stand for it.
std::string Bomb(uint32_t stream) {
  std::string block = server::CallHeaders(kStream);
  block += std::string("\x40\1b\x7f\xa1\x1e", 6) + std::string(4000, 'x');
  block += std::string(8000, '\xbe');
  return Http2Frame(FrameType::kHeaders, kEndHeaders, stream, block);
}

std::string LargeHeaders(uint32_t stream) {
  std::string block = server::CallHeaders(kStream);
  for (int i = 0; i < 110; ++i) block += server::Http2Header(absl::StrCat("h", i), std::string(120, 'x'));
  return Http2Frame(FrameType::kHeaders, kEndHeaders | kEndStream, stream, block.substr(0, 16'000));
}

class Garbage : public AttackBytes {
 public:
  std::string Start() override { return Next(); }
  std::string Next() override {
    std::string piece(kPiece, '\0');
    for (char& byte : piece) byte = static_cast<char>(random_());
    return piece;
  }

 private:
  std::mt19937 random_{1};
};

// A connection that says nothing.
class Silence : public AttackBytes {
 public:
  std::string Start() override { return ""; }
  std::string Next() override { return ""; }
  absl::Duration pause() const override { return absl::Milliseconds(50); }
};

template <typename Bytes, typename... Arguments>
std::unique_ptr<AttackBytes> Make(Arguments... arguments) {
  return std::make_unique<Bytes>(arguments...);
}

std::string Frame(uint8_t type, uint32_t stream, std::string_view payload) {
  return Http2Frame(static_cast<FrameType>(type), 0, stream, payload);
}

constexpr uint8_t kPriority = 2, kUnknown = 0x42;

const Attack kAttacks[] = {
    {"resets", "streams reset as soon as they are opened",
     [] { return Make<Streams>(+[](uint32_t s) { return Headers(s, kEndHeaders, kStream) + Reset(s); }); }},
    {"late_resets", "64 streams opened, and reset 3 ms later", [] { return Make<LateResets>(); }},
    {"open_streams", "streams that are opened and left",
     [] { return Make<Streams>(+[](uint32_t s) { return Headers(s, kEndHeaders, kStream); }); }},
    {"no_settings_ack", "streams, before the server's settings are acknowledged",
     [] {
       return Make<Streams>(
           +[](uint32_t s) { return Headers(s, kEndHeaders, kStream); }, server::Http2Start());
     }},
    {"health_checks", "health checks as fast as they are taken",
     [] {
       return Make<Streams>(+[](uint32_t s) {
         return Headers(s, kEndHeaders, kCheck) +
                Http2Frame(FrameType::kData, kEndStream, s, std::string_view("\0\0\0\0\0", 5));
       });
     }},
    {"continuation", "a header that is continued without end",
     [] { return Make<Same>(Frame(9, 1, std::string(16'384, 'x')), EndlessHeader()); }},
    {"small_continuation", "a header that is continued without end, a byte a frame",
     [] { return Make<Same>(Frame(9, 1, "x"), EndlessHeader()); }},
    {"empty_continuation", "a header that is continued without end, by empty frames",
     [] { return Make<Same>(Frame(9, 1, ""), EndlessHeader()); }},
    {"header_lists", "calls with 14 KB of headers", [] { return Make<Streams>(&LargeHeaders); }},
    {"header_bomb", "calls whose headers are 32 MB when they are decompressed", [] { return Make<Streams>(&Bomb); }},
    {"settings", "SETTINGS frames", [] { return Make<Same>(Frame(4, 0, std::string_view("\0\4\0\0\xff\xff", 6))); }},
    {"ping", "PING frames", [] { return Make<Same>(Frame(6, 0, "12345678")); }},
    {"window_update", "WINDOW_UPDATE frames that never run dry",
     [] { return Make<Same>(Frame(8, 1, std::string_view("\0\0\0\1", 4))); }},
    {"empty_data", "DATA frames without data",
     [] { return Make<Same>(Frame(0, 1, ""), Acknowledged() + Headers(1, kEndHeaders, kStream)); }},
    {"priority", "PRIORITY frames", [] { return Make<Same>(Frame(kPriority, 1, std::string_view("\0\0\0\0\1", 5))); }},
    {"unknown", "frames of no known type that never run dry",
     [] { return Make<Same>(Frame(kUnknown, 1, std::string(16'384, 'x'))); }},
    {"garbage", "random bytes", [] { return Make<Garbage>(); }},
    {"silence", "a connection that says nothing", [] { return Make<Silence>(); }},
};

// A connection to the server, in plain text or TLS. Reads and drops the bytes that the server sends.
class Connection {
 public:
  Connection(const std::string& address, bool tls) {
    const auto target = server::ListenAddress::Parse(address);
    SORTITION_CHECK(target.ok());
    fd_ = socket(target->address()->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    open_ = connect(fd_, target->address(), target->size()) == 0;
    if (!open_ || !tls) return;
    context_.reset(SSL_CTX_new(TLS_client_method()));
    tls_.reset(SSL_new(context_.get()));
    constexpr unsigned char kProtocol[] = "\2h2";
    SSL_set_alpn_protos(tls_.get(), kProtocol, sizeof(kProtocol) - 1);
    SSL_set_mode(tls_.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_set_fd(tls_.get(), fd_);
    constexpr timeval kLongest = {5, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &kLongest, sizeof(kLongest));
    open_ = SSL_connect(tls_.get()) == 1;
    // gRPC 1.51 loses bytes that come with the end of the handshake: the server speaks first.
    constexpr int kLongestWait = 1000;
    pollfd polled = {fd_, POLLIN, 0};
    poll(&polled, 1, kLongestWait);
  }
  ~Connection() {
    tls_.reset();
    close(fd_);
  }

  // Sends bytes as fast as the server takes them until `end`. Returns their number.
  size_t Send(std::string_view bytes, absl::Time end) {
    size_t sent = 0;
    while (open_ && sent < bytes.size()) {
      const absl::Duration left = end - absl::Now();
      if (left <= absl::ZeroDuration()) break;
      pollfd polled = {fd_, POLLIN | POLLOUT, 0};
      if (poll(&polled, 1, static_cast<int>(std::min<int64_t>(100, absl::ToInt64Milliseconds(left) + 1))) <= 0)
        continue;
      if ((polled.revents & (POLLIN | POLLHUP | POLLERR)) != 0) Drain();
      if (open_ && (polled.revents & POLLOUT) != 0) sent += Write(bytes.substr(sent));
    }
    return sent;
  }
  // Waits. Returns whether the connection is open after it.
  bool Wait(absl::Duration pause) {
    pollfd polled = {fd_, POLLIN, 0};
    if (poll(&polled, 1, static_cast<int>(absl::ToInt64Milliseconds(pause))) > 0) Drain();
    return open_;
  }
  bool is_open() const { return open_; }

 private:
  void Drain() {
    char bytes[65'536];
    const ssize_t count = recv(fd_, bytes, sizeof(bytes), MSG_DONTWAIT);
    // Drops the server's TLS records unread.
    if (count == 0 || (count < 0 && errno != EAGAIN)) open_ = false;
  }
  size_t Write(std::string_view bytes) {
    bytes = bytes.substr(0, 16'384);
    const ssize_t count = tls_ != nullptr ? SSL_write(tls_.get(), bytes.data(), static_cast<int>(bytes.size()))
                                          : send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) return static_cast<size_t>(count);
    if (tls_ != nullptr || errno != EAGAIN) open_ = false;
    return 0;
  }

  struct Free {
    void operator()(SSL* tls) const { SSL_free(tls); }
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  int fd_ = -1;
  bool open_ = false;
  std::unique_ptr<SSL_CTX, Free> context_;
  std::unique_ptr<SSL, Free> tls_;
};

}  // namespace

std::span<const Attack> Attacks() { return kAttacks; }

std::string_view WireName(Wire wire) {
  switch (wire) {
    case Wire::kTcp:
      return "tcp";
    case Wire::kTls:
      return "tls";
    case Wire::kUnix:
      return "unix";
    case Wire::kHealth:
      return "health";
  }
  SORTITION_CHECK(false);
}

void YieldToOthers() {
  const sched_param parameters = {};
  SORTITION_CHECK(sched_setscheduler(0, SCHED_IDLE, &parameters) == 0);
}

AttackCount Send(const Attack& attack, const std::string& address, bool tls, absl::Time end,
                 const std::atomic<bool>& stop, bool idle) {
  std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to a socket that the server has closed
  if (idle) YieldToOthers();
  AttackCount count;
  const std::unique_ptr<AttackBytes> bytes = attack.make();
  while (absl::Now() < end && !stop) {
    ++count.connections;
    Connection connection(address, tls);
    count.bytes += connection.Send(bytes->Start(), end);
    while (connection.is_open() && absl::Now() < end && !stop) {
      count.bytes += connection.Send(bytes->Next(), end);
      if (bytes->pause() > absl::ZeroDuration()) connection.Wait(bytes->pause());
    }
    // The last bytes find a socket that has run dry.
    if (connection.is_open()) connection.Wait(absl::Milliseconds(300));
    if (connection.is_open())
      count.bytes += connection.Send(bytes->Next().substr(0, 64), absl::Now() + absl::Seconds(1));
    if (absl::Now() < end) absl::SleepFor(absl::Milliseconds(10));
  }
  return count;
}

}  // namespace sortition::attacks
