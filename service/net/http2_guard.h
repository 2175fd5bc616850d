// Stands between the sockets and gRPC, so that a client which reaches HTTP/2 cannot take the server's memory and time.
//
// gRPC reads its connections by recvmsg, and the plaintext of TLS by SSL_read. guarded_calls.cc defines both for the
// process, beside close, epoll_ctl and getpeername, and passes them on. The guard reads the frame headers in the bytes
// that they return (frame_meter.h), and copies no byte. It does five things:
// - It ends a connection that sends what no honest client sends, or whose client leaves a cancelled call's answers in
//   the socket.
// - It paces calls and frames: gRPC is told that nothing has come until the connection's budget has refilled.
// - It bounds the bytes of messages that are not complete until a call of the connection is authorised, and counts
//   those of each client after it (arrivals.h).
// - It holds newcomers from an address one of whose connections has just closed and was useless: it was ended, or none
//   of its calls was answered. So a client that connects again and again costs ten handshakes a second.
// - It ends a round of reading after kRoundBytes, so that no connection keeps the others waiting. gRPC's estimate of
//   the next read grows with the length of a round, and ends the process beyond 2 GiB.
#pragma once

#include <openssl/types.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "service/clock.h"
#include "service/memory/descriptor.h"
#include "service/net/arrivals.h"
#include "service/net/frame_meter.h"

namespace sortition::server {

// The connections that the guard has ended, for metrics and the log. Thread-safe.
class GuardEvents {
 public:
  struct Ended {
    FrameExcess excess;
    std::string peer;
  };
  static constexpr size_t kMostNamed = 16;

  void Add(FrameExcess excess, const std::string& peer);
  // Returns how many were ended for each reason since the last call, and the first kMostNamed of them.
  std::array<uint32_t, kFrameExcesses> Take(std::vector<Ended>* named);

 private:
  absl::Mutex mutex_;
  std::array<uint32_t, kFrameExcesses> counts_ ABSL_GUARDED_BY(mutex_) = {};
  std::vector<Ended> named_ ABSL_GUARDED_BY(mutex_);
};

// Instance() is the process's, since the calls that it stands before are. Thread-safe.
//
// A connection may be closed by any thread, but not while another thread uses its descriptor: gRPC closes a socket when
// its last user has let go of it. So a connection that a call has found by its descriptor lives until the call returns.
class Http2Guard {
 public:
  enum class Wire : uint8_t { kPlain, kTls };

  // The C library's and OpenSSL's functions that guarded_calls.cc replaces.
  struct Calls {
    ssize_t (*recvmsg)(int, msghdr*, int);
    int (*epoll_ctl)(int, int, int, epoll_event*);
    int (*ssl_read)(SSL*, void*, int);
    int (*getpeername)(int, sockaddr*, socklen_t*);
  };

  // A round of reading one connection ends after this many bytes.
  static constexpr uint64_t kRoundBytes = 2u << 20;
  // Budgets for the calls of connections that the service has not answered yet: each connection's own, then one for
  // all. So newcomers and health probes are answered although others wait.
  static constexpr TokenBucket::Rate kOwnCalls = {16, 50};
  static constexpr TokenBucket::Rate kNewCalls = {100, 200};
  // After a useless connection, new ones from its address are first read kHold after they were accepted.
  static constexpr absl::Duration kHold = absl::Milliseconds(100);
  static constexpr absl::Duration kUselessRemembered = absl::Seconds(1);
  // Bytes of a TLS connection before its first plaintext: handshakes are shorter.
  static constexpr uint64_t kHandshakeBytes = 256 << 10;
  static constexpr size_t kHandshakeRead = 4 << 10;  // of these in one read
  static constexpr size_t kRandomBytes = 32;         // of a TLS client's random

  // `clock` is not owned and outlives the guard. Only tests make a guard, for descriptors that no one else reads.
  explicit Http2Guard(const service::Clock* clock);
  static Http2Guard& Instance();

  // Returns whether the descriptor is a guarded connection's; whether there has been any. Usable before Instance is.
  static bool Guards(int fd) { return Find(fd) != nullptr; }
  static bool IsUsed() { return used_.load(std::memory_order_acquire); }

  // Returns a name for the peer of a Unix socket, which the kernel gives none.
  static std::string UnixPeer(uint64_t number);

  // Guards the connection until it is closed. `events` gets its end.
  void Add(int fd, Wire wire, std::shared_ptr<GuardEvents> events);
  // Notes that the service has answered a call of `peer`, as gRPC spells it.
  void AddAnswer(std::string_view peer);
  // Notes that the service has authorised a call of `peer`, whose message may be under way. Returns the connection's
  // arrivals, for the call's reads; null if it is not guarded.
  std::shared_ptr<Arrivals> AddCaller(std::string_view peer);
  // Ends the connection of `peer`: a call of it was cancelled, and its last write waits in the socket.
  void EndUnread(std::string_view peer);
  // Lets gRPC read connections with refilled budgets. Called every few milliseconds.
  void Tick();

  // Returns whether the guard sees the frames of connections that `take` passes to gRPC. Connects to it, so its server
  // runs. Blocks until the frames were seen, or for a few seconds. `take` calls Add.
  bool Sees(const std::function<void(service::Descriptor)>& take, Wire wire);

  // The calls, of guarded connections. ReadTls takes any session.
  ssize_t Receive(const Calls& calls, int fd, msghdr* message, int flags);
  int ReadTls(const Calls& calls, SSL* tls, void* bytes, int size);
  void OnPoll(const Calls& calls, int epoll, int operation, int fd, const epoll_event* event);
  void OnClose(int fd);
  // Gives the peer of a Unix socket a name, so that calls can be told apart by connection.
  int NamePeer(const Calls& calls, int fd, sockaddr* address, socklen_t* size);

 private:
  class Connection;
  using Shared = std::shared_ptr<Connection>;

  // Descriptors with this number or more are not guarded. A process gets the lowest free number, so it must have this
  // number of open descriptors first.
  static constexpr int kMostDescriptors = 1 << 20;

  absl::Time Now() const { return clock_.Now(); }
  static std::atomic_ref<Connection*> Slot(int fd) { return std::atomic_ref(by_descriptor_[fd]); }
  static Connection* Find(int fd) {
    return fd < 0 || fd >= kMostDescriptors ? nullptr : Slot(fd).load(std::memory_order_acquire);
  }
  // Returns the connection of `peer`, as gRPC spells it; null if it is not guarded.
  Shared FindPeer(std::string_view peer);
  // Returns the connection that a TLS session reads; null if it is not guarded.
  Connection* Match(SSL* tls, bool* is_ours);
  // Notes a TLS client's random. False if there is the same one of another connection.
  bool AddGreeting(std::string random, Shared connection);
  // Returns how many calls of newcomers may be read beyond their connections' own.
  double NewCallsLeft(absl::Time now);
  // Takes up to `count` of these. Returns how many it has taken.
  double TakeNewCalls(double count, absl::Time now);
  // Returns true if a useless connection from the address was closed in the last kUselessRemembered.
  bool HadUseless(const std::string& address, absl::Time now);
  void Pause(Shared connection);

  static std::atomic<bool> used_;
  std::atomic<uint64_t> connections_ = 0;
  // Zero before any code runs, so that Find is usable then.
  static Connection* by_descriptor_[kMostDescriptors];

  const service::Clock& clock_;
  const int tls_index_;  // of a session's connection among its extra data
  std::atomic<bool> sees_tls_ = false;
  absl::Mutex mutex_;  // taken after a connection's
  absl::flat_hash_map<int, Shared> open_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, Shared> by_peer_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, Shared> greeting_ ABSL_GUARDED_BY(mutex_);  // TLS in its handshake, by its random
  std::vector<Shared> paused_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, absl::Time> useless_ ABSL_GUARDED_BY(mutex_);  // the last close, by address
  TokenBucket new_calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sortition::server
