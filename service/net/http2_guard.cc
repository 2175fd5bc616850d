// Connections under guard, the calls on them, and the match of TLS sessions with sockets.
#include "service/net/http2_guard.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "service/net/guarded_connection.h"

namespace sortition::server {

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

// Constant from the start, and only the pages that are used take memory.
constinit std::atomic<bool> Http2Guard::used_ = false;
constinit Http2Guard::Connection* Http2Guard::by_descriptor_[Http2Guard::kMostDescriptors] = {};

Http2Guard& Http2Guard::Instance() {
  // Both outlive every thread that reads a socket.
  static const service::SteadyClock& clock = *new service::SteadyClock;
  static Http2Guard& instance = *new Http2Guard(&clock);
  return instance;
}

Http2Guard::Http2Guard(const service::Clock* clock)
    : clock_(*clock),
      tls_index_(SSL_get_ex_new_index(
          0, nullptr, nullptr, nullptr,
          [](void*, void* shared, CRYPTO_EX_DATA*, int, long, void*) { delete static_cast<Shared*>(shared); })),
      new_calls_(kNewCalls, Now()) {}

void Http2Guard::Add(int fd, Wire wire, std::shared_ptr<GuardEvents> events) {
  if (fd >= kMostDescriptors) return;
  const absl::Time now = Now();
  auto connection = std::make_shared<Connection>(fd, wire, std::move(events), ++connections_, now);
  if (HadUseless(connection->address(), now)) connection->Hold(now + kHold);
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
  }
  bool was_useless;
  const std::string random = connection->Close(&was_useless);
  const absl::Time now = Now();
  absl::MutexLock lock(&mutex_);
  if (was_useless) {
    absl::erase_if(useless_, [now](const auto& entry) { return now - entry.second >= kUselessRemembered; });
    useless_[connection->address()] = now;
  }
  if (random.empty()) return;
  const auto greeting = greeting_.find(random);
  if (greeting != greeting_.end() && greeting->second == connection) greeting_.erase(greeting);
}

bool Http2Guard::AddGreeting(std::string random, Shared connection) {
  absl::MutexLock lock(&mutex_);
  return greeting_.try_emplace(std::move(random), std::move(connection)).second;
}

std::string Http2Guard::UnixPeer(uint64_t number) { return absl::StrCat("sortition-", number); }

Http2Guard::Shared Http2Guard::FindPeer(std::string_view peer) {
  std::string key(peer);
  if (key.find('%') != key.npos) key = absl::StrReplaceAll(key, {{"%5B", "["}, {"%5D", "]"}});
  absl::MutexLock lock(&mutex_);
  const auto found = by_peer_.find(key);
  return found == by_peer_.end() ? nullptr : found->second;
}

void Http2Guard::AddAnswer(std::string_view peer) {
  if (const Shared connection = FindPeer(peer)) connection->AddAnswer(Now());
}

std::shared_ptr<Arrivals> Http2Guard::AddCaller(std::string_view peer) {
  const Shared connection = FindPeer(peer);
  return connection == nullptr ? nullptr : connection->AddCaller();
}

void Http2Guard::EndUnread(std::string_view peer) {
  if (const Shared connection = FindPeer(peer)) connection->EndUnread();
}

double Http2Guard::NewCallsLeft(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  return new_calls_.Left(now);
}

double Http2Guard::TakeNewCalls(double count, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  const double taken = std::min(count, std::max(0.0, new_calls_.Left(now)));
  new_calls_.Take(taken, now);
  return taken;
}

bool Http2Guard::HadUseless(const std::string& address, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  const auto found = useless_.find(address);
  return found != useless_.end() && now - found->second < kUselessRemembered;
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

}  // namespace sortition::server
