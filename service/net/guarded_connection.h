// One connection under guard: its rounds, its pauses and its end.
#pragma once

#include <memory>
#include <string>

#include "service/net/http2_guard.h"

namespace sortition::server {

// Thread-safe. Its mutex is taken before the guard's.
class Http2Guard::Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(int fd, Wire wire, std::shared_ptr<GuardEvents> events, uint64_t number, absl::Time now);

  const std::string& peer() const { return peer_; }
  uint64_t number() const { return number_; }
  // Returns the peer without its port. Each peer of a Unix socket has another address.
  std::string address() const { return peer_.starts_with("unix") ? peer_ : peer_.substr(0, peer_.rfind(':')); }

  ssize_t Receive(Http2Guard* guard, const Calls& calls, msghdr* message, int flags) ABSL_LOCKS_EXCLUDED(mutex_);
  // Counts plaintext of TLS. False if the connection is ended.
  bool CountTls(Http2Guard* guard, const void* bytes, size_t size) ABSL_LOCKS_EXCLUDED(mutex_);
  void SetPoll(const Calls& calls, int epoll, const epoll_event& event) ABSL_LOCKS_EXCLUDED(mutex_);
  void AddAnswer(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<Arrivals> AddCaller() ABSL_LOCKS_EXCLUDED(mutex_);
  void EndUnread() ABSL_LOCKS_EXCLUDED(mutex_);
  // Lets nothing be read until then.
  void Hold(absl::Time until) ABSL_LOCKS_EXCLUDED(mutex_);
  // Lets gRPC read again if the budgets have refilled; false if not yet.
  bool Resume(Http2Guard* guard) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for calls on the connection; later ones touch its descriptor no more. Sets whether it has got nothing done:
  // it was ended, or no call was answered. Returns the client's random of TLS if it is known.
  std::string Close(bool* was_useless) ABSL_LOCKS_EXCLUDED(mutex_);
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
  const std::shared_ptr<Arrivals> arrivals_ = std::make_shared<Arrivals>();
  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  FrameMeter meter_ ABSL_GUARDED_BY(mutex_);
  FrameExcess ended_ ABSL_GUARDED_BY(mutex_) = FrameExcess::kNone;
  absl::Time held_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  TokenBucket own_calls_ ABSL_GUARDED_BY(mutex_);
  bool counted_ ABSL_GUARDED_BY(mutex_) = false;
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;
  // The peer sends no more, and had calls waiting before any was answered. gRPC is told of the end at once: to read
  // them would take the time that newcomers wait for.
  bool has_left_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t round_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool in_loop_ ABSL_GUARDED_BY(mutex_) = false;  // gRPC calls again before it passes on the bytes that it has read
  // The last read of TLS took all that the budgets allow: its plaintext is counted before the next read.
  bool is_uncounted_ ABSL_GUARDED_BY(mutex_) = false;
  // The call by which gRPC polls the socket.
  int (*epoll_ctl_)(int, int, int, epoll_event*) ABSL_GUARDED_BY(mutex_) = nullptr;
  int epoll_ ABSL_GUARDED_BY(mutex_) = -1;
  epoll_event event_ ABSL_GUARDED_BY(mutex_) = {};
  // TLS: the first bytes up to the end of the client's random, and the number of those before the first plaintext.
  std::string greeting_ ABSL_GUARDED_BY(mutex_);
  uint64_t handshake_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool matched_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace sortition::server
