// Connections under guard: rounds, pauses, ends, and the match of TLS sessions with sockets.
#include "service/server/http2_guard.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "service/clock.h"

namespace sortition::server {
namespace {

#ifndef TCP_INQ
constexpr int TCP_INQ = 36;
#endif

// A TLS connection begins with the headers of a record and of a message, a version, and the client's random.
constexpr size_t kRandomOffset = 11;
constexpr size_t kRandomBytes = 32;
constexpr int kMostPieces = 1024;

absl::Time Now() { return service::SteadyClock().Now(); }

int TryAgain() {
  errno = EAGAIN;
  return -1;
}

// Returns a name for the peer of a Unix socket, which the kernel gives none.
std::string UnixPeer(uint64_t number) { return absl::StrCat("sortition-", number); }

// Returns the peer as gRPC spells it.
std::string PeerOf(int fd, uint64_t number) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  char text[INET6_ADDRSTRLEN];
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
  if (address.ss_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &four.sin_addr, text, sizeof(text));
    return absl::StrCat("ipv4:", text, ":", ntohs(four.sin_port));
  }
  if (address.ss_family != AF_INET6) return absl::StrCat("unix-abstract:", UnixPeer(number));
  const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
  if (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) {
    inet_ntop(AF_INET, six.sin6_addr.s6_addr + 12, text, sizeof(text));
    return absl::StrCat("ipv4:", text, ":", ntohs(six.sin6_port));
  }
  inet_ntop(AF_INET6, &six.sin6_addr, text, sizeof(text));
  return absl::StrCat("ipv6:[", text, "]:", ntohs(six.sin6_port));
}

// Returns whether the kernel says that a read has left nothing in the socket.
bool IsDry(msghdr* message) {
  if (message->msg_control == nullptr) return false;
  for (cmsghdr* part = CMSG_FIRSTHDR(message); part != nullptr; part = CMSG_NXTHDR(message, part)) {
    if (part->cmsg_level != IPPROTO_TCP || part->cmsg_type != TCP_INQ) continue;
    int left;
    std::memcpy(&left, CMSG_DATA(part), sizeof(left));
    return left == 0;
  }
  return false;
}

size_t SizeOf(const msghdr& message) {
  size_t size = 0;
  for (size_t i = 0; i < message.msg_iovlen; ++i) size += message.msg_iov[i].iov_len;
  return size;
}

// Calls `use` with each piece of the first `size` bytes.
template <typename Use>
void ForEachPiece(const msghdr& message, size_t size, Use use) {
  for (size_t i = 0; i < message.msg_iovlen && size != 0; ++i) {
    const size_t count = std::min(size, message.msg_iov[i].iov_len);
    use(message.msg_iov[i].iov_base, count);
    size -= count;
  }
}

// Receives at most `most` bytes. Leaves `message` as it was but for what the kernel tells.
ssize_t ReceiveAtMost(const Http2Guard::Calls& calls, int fd, msghdr* message, int flags, size_t most) {
  iovec* const pieces = message->msg_iov;
  const auto count = message->msg_iovlen;
  size_t used = 0;
  while (most > pieces[used].iov_len) most -= pieces[used++].iov_len;
  const size_t whole = std::exchange(pieces[used].iov_len, most);
  message->msg_iovlen = used + 1;
  const ssize_t received = calls.recvmsg(fd, message, flags);
  message->msg_iovlen = count;
  pieces[used].iov_len = whole;
  return received;
}

}  // namespace

void GuardEvents::Add(FrameExcess excess, const std::string& peer) {
  absl::MutexLock lock(&mutex_);
  ++counts_[static_cast<size_t>(excess)];
  if (named_.size() < kMostNamed) named_.push_back({excess, peer});
}

std::array<uint32_t, kFrameExcesses> GuardEvents::Take(std::vector<Ended>* named) {
  absl::MutexLock lock(&mutex_);
  *named = std::exchange(named_, {});
  return std::exchange(counts_, {});
}

class Http2Guard::Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(int fd, Wire wire, std::shared_ptr<GuardEvents> events, uint64_t number)
      : wire_(wire),
        fd_(fd),
        number_(number),
        peer_(PeerOf(fd, number)),
        events_(std::move(events)),
        meter_(Now()),
        own_calls_(kOwnCalls, Now()) {}

  const std::string& peer() const { return peer_; }
  uint64_t number() const { return number_; }

  ssize_t Receive(Http2Guard* guard, const Calls& calls, msghdr* message, int flags) ABSL_LOCKS_EXCLUDED(mutex_);
  // Counts plaintext of TLS. False if the connection is ended.
  bool CountTls(Http2Guard* guard, const void* bytes, size_t size) ABSL_LOCKS_EXCLUDED(mutex_);
  void SetPoll(const Calls& calls, int epoll, const epoll_event& event) ABSL_LOCKS_EXCLUDED(mutex_);
  void AddAnswer() ABSL_LOCKS_EXCLUDED(mutex_);
  // Lets gRPC read again if the budgets have refilled; false if not yet.
  bool Resume(Http2Guard* guard) ABSL_LOCKS_EXCLUDED(mutex_);
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);
  void Match() ABSL_LOCKS_EXCLUDED(mutex_);
  bool seen() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  size_t MayRead(Http2Guard* guard, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Count(Http2Guard* guard, const void* bytes, size_t size, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountHandshake(Http2Guard* guard, const msghdr& message, size_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Pause(Http2Guard* guard) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(FrameExcess excess) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes the socket report once more that it can be read, if it can.
  void Rearm() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Wire wire_;
  const int fd_;
  const uint64_t number_;
  const std::string peer_;
  const std::shared_ptr<GuardEvents> events_;
  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  FrameMeter meter_ ABSL_GUARDED_BY(mutex_);
  FrameExcess ended_ ABSL_GUARDED_BY(mutex_) = FrameExcess::kNone;
  TokenBucket own_calls_ ABSL_GUARDED_BY(mutex_);
  bool counted_ ABSL_GUARDED_BY(mutex_) = false;
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t round_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool in_loop_ ABSL_GUARDED_BY(mutex_) = false;  // gRPC calls again before it passes on what it has read
  // Where the socket is polled.
  int (*epoll_ctl_)(int, int, int, epoll_event*) ABSL_GUARDED_BY(mutex_) = nullptr;
  int epoll_ ABSL_GUARDED_BY(mutex_) = -1;
  epoll_event event_ ABSL_GUARDED_BY(mutex_) = {};
  // TLS: the client's random, and the bytes before the first plaintext.
  std::string random_ ABSL_GUARDED_BY(mutex_);
  uint64_t handshake_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool matched_ ABSL_GUARDED_BY(mutex_) = false;
};

ssize_t Http2Guard::Connection::Receive(Http2Guard* guard, const Calls& calls, msghdr* message, int flags) {
  absl::MutexLock lock(&mutex_);
  if (ended_ != FrameExcess::kNone) return 0;
  const absl::Time now = Now();
  const size_t most = MayRead(guard, now);
  if (most == 0) {
    Pause(guard);
    in_loop_ = false;
    return TryAgain();
  }
  if (round_bytes_ >= kRoundBytes) {
    // gRPC ends its estimate only if the first read of a loop finds nothing.
    if (!in_loop_) round_bytes_ = 0;
    in_loop_ = false;
    Rearm();
    return TryAgain();
  }
  const size_t offered = SizeOf(*message);
  const ssize_t received =
      offered > most ? ReceiveAtMost(calls, fd_, message, flags, most) : calls.recvmsg(fd_, message, flags);
  if (received <= 0) {
    if (received < 0 && errno == EAGAIN) {
      round_bytes_ = 0;
      in_loop_ = false;
    }
    return received;
  }
  const auto size = static_cast<size_t>(received);
  const bool is_dry = IsDry(message);
  round_bytes_ = is_dry ? 0 : round_bytes_ + size;
  in_loop_ = size < offered && !is_dry;
  if (wire_ == Wire::kPlain) {
    ForEachPiece(*message, size, [&](const void* bytes, size_t count) {
      mutex_.AssertHeld();
      Count(guard, bytes, count, now);
    });
  } else if (!matched_) {
    CountHandshake(guard, *message, size);
  }
  return ended_ == FrameExcess::kNone ? received : 0;
}

size_t Http2Guard::Connection::MayRead(Http2Guard* guard, absl::Time now) {
  if (!meter_.answered() && own_calls_.Left(now) <= 0 && !guard->HasNewCalls(now)) return 0;
  return meter_.MayRead(now);
}

void Http2Guard::Connection::Count(Http2Guard* guard, const void* bytes, size_t size, absl::Time now) {
  if (ended_ != FrameExcess::kNone) return;
  counted_ = true;
  const FrameExcess excess = meter_.Read(bytes, size, now);
  if (excess != FrameExcess::kNone) return End(excess);
  const double calls = meter_.TakeNewCalls();
  if (calls == 0 || meter_.answered()) return;
  const double own = std::min(calls, std::max(0.0, own_calls_.Left(now)));
  own_calls_.Take(own, now);
  if (calls > own) guard->TakeNewCalls(calls - own, now);
}

void Http2Guard::Connection::CountHandshake(Http2Guard* guard, const msghdr& message, size_t size) {
  constexpr size_t kGreeting = kRandomOffset + kRandomBytes;
  if (random_.size() < kGreeting) {
    ForEachPiece(message, size, [&](const void* bytes, size_t count) {
      mutex_.AssertHeld();
      random_.append(static_cast<const char*>(bytes), std::min(count, kGreeting - random_.size()));
    });
    if (random_.size() == kGreeting) {
      absl::MutexLock lock(&guard->mutex_);
      // No two honest clients have the same random: the second one is refused when it is not found.
      guard->greeting_.emplace(random_.substr(kRandomOffset), shared_from_this());
    }
  }
  handshake_bytes_ += size;
  if (handshake_bytes_ > kHandshakeBytes && guard->sees_tls_) End(FrameExcess::kHiddenFrames);
}

bool Http2Guard::Connection::CountTls(Http2Guard* guard, const void* bytes, size_t size) {
  absl::MutexLock lock(&mutex_);
  Count(guard, bytes, size, Now());
  return ended_ == FrameExcess::kNone;
}

void Http2Guard::Connection::Pause(Http2Guard* guard) {
  if (paused_) return;
  paused_ = true;
  guard->Pause(shared_from_this());
}

bool Http2Guard::Connection::Resume(Http2Guard* guard) {
  absl::MutexLock lock(&mutex_);
  if (!closed_ && ended_ == FrameExcess::kNone && MayRead(guard, Now()) == 0) return false;
  paused_ = false;
  Rearm();
  return true;
}

void Http2Guard::Connection::End(FrameExcess excess) {
  ended_ = excess;
  shutdown(fd_, SHUT_RDWR);
  events_->Add(excess, peer_);
}

void Http2Guard::Connection::Rearm() {
  if (closed_ || epoll_ < 0) return;
  epoll_event event = event_;
  epoll_ctl_(epoll_, EPOLL_CTL_MOD, fd_, &event);
}

void Http2Guard::Connection::SetPoll(const Calls& calls, int epoll, const epoll_event& event) {
  absl::MutexLock lock(&mutex_);
  epoll_ctl_ = calls.epoll_ctl;
  epoll_ = epoll;
  event_ = event;
}

void Http2Guard::Connection::AddAnswer() {
  absl::MutexLock lock(&mutex_);
  meter_.AddAnswer(Now());
}

void Http2Guard::Connection::Close() {
  absl::MutexLock lock(&mutex_);
  closed_ = true;
}

void Http2Guard::Connection::Match() {
  absl::MutexLock lock(&mutex_);
  matched_ = true;
}

bool Http2Guard::Connection::seen() {
  absl::MutexLock lock(&mutex_);
  return counted_ && epoll_ >= 0;
}

// Constant from the start, and only the pages that are used take memory.
constinit std::atomic<bool> Http2Guard::used_ = false;
constinit Http2Guard::Connection* Http2Guard::by_descriptor_[Http2Guard::kMostDescriptors] = {};

Http2Guard& Http2Guard::Instance() {
  static Http2Guard& instance = *new Http2Guard;  // outlives every thread that reads a socket
  return instance;
}

Http2Guard::Http2Guard()
    : tls_index_(SSL_get_ex_new_index(
          0, nullptr, nullptr, nullptr,
          [](void*, void* shared, CRYPTO_EX_DATA*, int, long, void*) { delete static_cast<Shared*>(shared); })),
      new_calls_(kNewCalls, Now()) {}

void Http2Guard::Add(int fd, Wire wire, std::shared_ptr<GuardEvents> events) {
  if (fd >= kMostDescriptors) return;
  auto connection = std::make_shared<Connection>(fd, wire, std::move(events), ++connections_);
  absl::MutexLock lock(&mutex_);
  used_.store(true, std::memory_order_release);
  Slot(fd).store(connection.get(), std::memory_order_release);
  by_peer_[connection->peer()] = connection;
  open_[fd] = std::move(connection);
}

void Http2Guard::OnClose(int fd) {
  Shared connection;
  {
    absl::MutexLock lock(&mutex_);
    Slot(fd).store(nullptr, std::memory_order_release);
    const auto open = open_.find(fd);
    if (open == open_.end()) return;
    connection = std::move(open->second);
    open_.erase(open);
    const auto peer = by_peer_.find(connection->peer());
    if (peer != by_peer_.end() && peer->second == connection) by_peer_.erase(peer);
    absl::erase_if(greeting_, [&](const auto& entry) { return entry.second == connection; });
  }
  connection->Close();
}

void Http2Guard::AddAnswer(std::string_view peer) {
  std::string key(peer);
  if (key.find('%') != key.npos) key = absl::StrReplaceAll(key, {{"%5B", "["}, {"%5D", "]"}});
  Shared connection;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = by_peer_.find(key);
    if (found == by_peer_.end()) return;
    connection = found->second;
  }
  connection->AddAnswer();
}

bool Http2Guard::HasNewCalls(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  return new_calls_.Left(now) > 0;
}

void Http2Guard::TakeNewCalls(double count, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  new_calls_.Take(count, now);
}

void Http2Guard::Pause(Shared connection) {
  absl::MutexLock lock(&mutex_);
  paused_.push_back(std::move(connection));
}

void Http2Guard::Tick() {
  std::vector<Shared> paused;
  {
    absl::MutexLock lock(&mutex_);
    if (paused_.empty()) return;
    paused = std::exchange(paused_, {});
  }
  std::erase_if(paused, [this](const Shared& connection) { return connection->Resume(this); });
  // Those who wait longest come first, so that each gets its turn.
  absl::MutexLock lock(&mutex_);
  paused_.insert(paused_.begin(), paused.begin(), paused.end());
}

ssize_t Http2Guard::Receive(const Calls& calls, int fd, msghdr* message, int flags) {
  Connection* const connection = Find(fd);
  if (connection == nullptr || (flags & (MSG_ERRQUEUE | MSG_PEEK)) != 0) return calls.recvmsg(fd, message, flags);
  return connection->Receive(this, calls, message, flags);
}

void Http2Guard::OnPoll(const Calls& calls, int epoll, int operation, int fd, const epoll_event* event) {
  Connection* const connection = Find(fd);
  if (connection != nullptr && operation != EPOLL_CTL_DEL) connection->SetPoll(calls, epoll, *event);
}

int Http2Guard::NamePeer(const Calls& calls, int fd, sockaddr* address, socklen_t* size) {
  const socklen_t room = *size;
  const int result = calls.getpeername(fd, address, size);
  if (result != 0 || room < sizeof(sockaddr_un) || address->sa_family != AF_UNIX) return result;
  auto* const local = reinterpret_cast<sockaddr_un*>(address);
  // A name without a file begins with a byte 0.
  const std::string name = '\0' + UnixPeer(Find(fd)->number());
  std::memcpy(local->sun_path, name.data(), name.size());
  *size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  return result;
}

Http2Guard::Connection* Http2Guard::Match(SSL* tls, bool* is_ours) {
  *is_ours = false;
  if (SSL_is_server(tls) == 0) return nullptr;
  if (const void* known = SSL_get_ex_data(tls, tls_index_)) return static_cast<const Shared*>(known)->get();
  char random[kRandomBytes];
  SSL_get_client_random(tls, reinterpret_cast<unsigned char*>(random), sizeof(random));
  Shared connection;
  {
    absl::MutexLock lock(&mutex_);
    if (greeting_.empty()) return nullptr;
    const auto found = greeting_.find(absl::string_view(random, sizeof(random)));
    *is_ours = true;
    if (found == greeting_.end()) return nullptr;
    connection = std::move(found->second);
    greeting_.erase(found);
  }
  connection->Match();
  Connection* const result = connection.get();
  SSL_set_ex_data(tls, tls_index_, new Shared(std::move(connection)));
  return result;
}

int Http2Guard::ReadTls(const Calls& calls, SSL* tls, void* bytes, int size) {
  const int received = calls.ssl_read(tls, bytes, size);
  if (received <= 0) return received;
  bool is_ours;
  Connection* const connection = Match(tls, &is_ours);
  if (connection == nullptr && !is_ours) return received;
  sees_tls_ = true;
  if (connection != nullptr && connection->CountTls(this, bytes, static_cast<size_t>(received))) return received;
  ERR_raise(ERR_LIB_USER, ERR_R_OPERATION_FAIL);
  return -1;
}

namespace {

// Speaks enough of HTTP/2 that a server which reads it answers; over TLS if there is a session.
void Greet(int fd, SSL* tls) {
  // The preface and an empty SETTINGS frame.
  constexpr char kGreeting[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0";
  if (tls == nullptr) {
    send(fd, kGreeting, sizeof(kGreeting), MSG_NOSIGNAL);
  } else if (SSL_set_fd(tls, fd) == 1 && SSL_connect(tls) == 1) {
    SSL_write(tls, kGreeting, sizeof(kGreeting));
  }
}

}  // namespace

bool Http2Guard::Sees(const std::function<void(service::Descriptor)>& take, Wire wire) {
  constexpr timeval kLongest = {2, 0};
  constexpr int kMostLooks = 400;
  constexpr int kPauseMilliseconds = 5;
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return false;
  service::Descriptor ours(ends[0]);
  service::Descriptor theirs(ends[1]);
  const int guarded = theirs.get();
  for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO}) {
    setsockopt(ours.get(), SOL_SOCKET, option, &kLongest, sizeof(kLongest));
  }
  fcntl(guarded, F_SETFL, O_NONBLOCK);
  take(std::move(theirs));
  Shared connection;
  {
    absl::MutexLock lock(&mutex_);
    const auto open = open_.find(guarded);
    if (open == open_.end()) return false;
    connection = open->second;
  }
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  const std::unique_ptr<SSL, decltype(&SSL_free)> tls(wire == Wire::kTls ? SSL_new(context.get()) : nullptr, SSL_free);
  constexpr unsigned char kProtocol[] = "\2h2";
  if (tls) SSL_set_alpn_protos(tls.get(), kProtocol, sizeof(kProtocol) - 1);
  Greet(ours.get(), tls.get());
  const auto becomes = [](const auto& condition) {
    for (int i = 0; i < kMostLooks; ++i) {
      if (condition()) return true;
      poll(nullptr, 0, kPauseMilliseconds);
    }
    return false;
  };
  const bool seen = becomes([&] { return connection->seen(); });
  // The server closes its end, so that nothing of the proof is left.
  ours = service::Descriptor();
  becomes([&] {
    absl::MutexLock lock(&mutex_);
    return !open_.contains(guarded) || open_[guarded] != connection;
  });
  return seen;
}

}  // namespace sortition::server
