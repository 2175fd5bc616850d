// Rounds, pauses, ends, and the beginning of TLS.
#include "service/net/guarded_connection.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sortition::server {
namespace {

#ifndef TCP_INQ
constexpr int TCP_INQ = 36;
#endif

// A TLS connection begins with the headers of a record and of a message, a version, and the client's random.
constexpr size_t kRandomOffset = 11;
constexpr size_t kGreeting = kRandomOffset + Http2Guard::kRandomBytes;

int TryAgain() {
  errno = EAGAIN;
  return -1;
}

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
  if (address.ss_family != AF_INET6) return absl::StrCat("unix-abstract:", Http2Guard::UnixPeer(number));
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

// Returns whether the peer sends no more.
bool HasLeft(int fd) {
  pollfd polled = {fd, POLLRDHUP, 0};
  return poll(&polled, 1, 0) > 0;
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

// Receives at most `most` bytes. Changes nothing in `message` except the fields that the kernel sets.
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

Http2Guard::Connection::Connection(int fd, Wire wire, std::shared_ptr<GuardEvents> events, uint64_t number,
                                   absl::Time now)
    : wire_(wire),
      fd_(fd),
      number_(number),
      peer_(PeerOf(fd, number)),
      events_(std::move(events)),
      meter_(now),
      own_calls_(kOwnCalls, now) {}

ssize_t Http2Guard::Connection::Receive(Http2Guard* guard, const Calls& calls, msghdr* message, int flags) {
  absl::MutexLock lock(&mutex_);
  if (ended_ != FrameExcess::kNone || has_left_) return 0;
  const absl::Time now = guard->Now();
  // Until the guard sees its plaintext, a TLS connection is read in small pieces, so the first holds no flood.
  const bool is_hidden = wire_ == Wire::kTls && !matched_;
  const size_t paced = MayRead(guard, now);
  const size_t most = is_hidden && paced != 0 ? kHandshakeRead : paced;
  if (most == 0) {
    Pause(guard);
    in_loop_ = false;
    return TryAgain();
  }
  if (std::exchange(is_uncounted_, false)) {
    in_loop_ = false;
    Rearm();
    return TryAgain();
  }
  if (round_bytes_ >= (is_hidden ? kHandshakeRead : kRoundBytes)) {
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
  is_uncounted_ = wire_ == Wire::kTls && size == most && in_loop_;
  if (wire_ == Wire::kPlain) {
    ForEachPiece(*message, size, [&](const void* bytes, size_t count) {
      mutex_.AssertHeld();
      Count(guard, bytes, count, now);
    });
  } else if (is_hidden) {
    CountHandshake(guard, *message, size);
  }
  return ended_ == FrameExcess::kNone ? received : 0;
}

size_t Http2Guard::Connection::MayRead(Http2Guard* guard, absl::Time now) {
  if (now < held_until_ || !arrivals_->MayReceive(now)) return 0;
  if (meter_.answered()) return meter_.MayRead(now);
  return meter_.MayRead(now, own_calls_.Left(now) + guard->NewCallsLeft(now));
}

void Http2Guard::Connection::Count(Http2Guard* guard, const void* bytes, size_t size, absl::Time now) {
  if (ended_ != FrameExcess::kNone) return;
  counted_ = true;
  const FrameExcess excess = meter_.Read(bytes, size, now);
  if (excess != FrameExcess::kNone) return End(excess);
  if (!arrivals_->Set(meter_.begun_bytes())) return End(FrameExcess::kUnfinished);
  const double calls = meter_.TakeNewCalls();
  if (calls == 0 || meter_.answered()) return;
  const double beyond = calls - std::min(calls, std::max(0.0, own_calls_.Left(now)));
  // Calls that neither budget covers are a debt of the connection: a read may bring more calls than were left.
  own_calls_.Take(calls - (beyond > 0 ? guard->TakeNewCalls(beyond, now) : 0), now);
}

void Http2Guard::Connection::CountHandshake(Http2Guard* guard, const msghdr& message, size_t size) {
  handshake_bytes_ += size;
  if (handshake_bytes_ > kHandshakeBytes && guard->sees_tls_) return End(FrameExcess::kHiddenFrames);
  if (greeting_.size() == kGreeting) return;
  ForEachPiece(message, size, [&](const void* bytes, size_t count) {
    mutex_.AssertHeld();
    greeting_.append(static_cast<const char*>(bytes), std::min(count, kGreeting - greeting_.size()));
  });
  // No two honest clients send the same random. The guard could not distinguish two connections with the same one.
  if (greeting_.size() == kGreeting && !guard->AddGreeting(greeting_.substr(kRandomOffset), shared_from_this())) {
    End(FrameExcess::kHiddenFrames);
  }
}

bool Http2Guard::Connection::CountTls(Http2Guard* guard, const void* bytes, size_t size) {
  absl::MutexLock lock(&mutex_);
  Count(guard, bytes, size, guard->Now());
  return ended_ == FrameExcess::kNone;
}

void Http2Guard::Connection::Pause(Http2Guard* guard) {
  if (paused_) return;
  paused_ = true;
  guard->Pause(shared_from_this());
}

bool Http2Guard::Connection::Resume(Http2Guard* guard) {
  absl::MutexLock lock(&mutex_);
  if (!closed_ && ended_ == FrameExcess::kNone) {
    has_left_ = !meter_.answered() && HasLeft(fd_);
    if (meter_.IsOverdue(guard->Now())) {
      End(FrameExcess::kUnfinished);
    } else if (!has_left_ && MayRead(guard, guard->Now()) == 0) {
      return false;
    }
  }
  paused_ = false;
  Rearm();
  return true;
}

void Http2Guard::Connection::End(FrameExcess excess) {
  ended_ = excess;
  if (!closed_) shutdown(fd_, SHUT_RDWR);
  events_->Add(excess, peer_);
}

void Http2Guard::Connection::EndUnread() {
  absl::MutexLock lock(&mutex_);
  if (ended_ == FrameExcess::kNone) End(FrameExcess::kUnread);
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

void Http2Guard::Connection::AddAnswer(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  meter_.AddAnswer(now);
}

std::shared_ptr<Arrivals> Http2Guard::Connection::AddCaller() {
  absl::MutexLock lock(&mutex_);
  meter_.AddCaller();
  if (paused_) Rearm();  // the message that is under way waits for no tick
  return arrivals_;
}

void Http2Guard::Connection::Hold(absl::Time until) {
  absl::MutexLock lock(&mutex_);
  held_until_ = until;
}

std::string Http2Guard::Connection::Close(bool* was_useless) {
  absl::MutexLock lock(&mutex_);
  closed_ = true;
  arrivals_->Close();
  *was_useless = ended_ != FrameExcess::kNone || !meter_.answered();
  return greeting_.size() < kGreeting ? "" : greeting_.substr(kRandomOffset);
}

void Http2Guard::Connection::Match() {
  absl::MutexLock lock(&mutex_);
  matched_ = true;
}

bool Http2Guard::Connection::seen() {
  absl::MutexLock lock(&mutex_);
  return counted_ && epoll_ >= 0;
}

}  // namespace sortition::server
