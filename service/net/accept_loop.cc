// The accepting thread, and its count of connections.
#include "service/net/accept_loop.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "service/memory/packet.h"

namespace sortition::server {

namespace {

std::optional<ino_t> ReadInode(int descriptor) {
  struct stat status;
  if (fstat(descriptor, &status) != 0) return std::nullopt;
  return status.st_ino;
}

}  // namespace

bool ConnectionCount::Admit(int socket) {
  if (most_ == 0) return true;
  open_.erase(socket);  // the connection that had this number is closed
  if (open_.size() >= most_) {
    absl::erase_if(open_, [](const auto& entry) { return ReadInode(entry.first) != entry.second; });
  }
  if (open_.size() >= most_) return false;
  const std::optional<ino_t> inode = ReadInode(socket);
  SORTITION_CHECK(inode.has_value());
  open_.emplace(socket, *inode);
  return true;
}

namespace {

// Fewer descriptors than this leave none for connections besides the reserve.
constexpr rlim_t kLeastDescriptors = 64;
// Pause in accepting when the whole system is out of descriptors or memory.
constexpr int kPauseMilliseconds = 50;

rlim_t DescriptorLimit() {
  struct rlimit limit;
  SORTITION_CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  return std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<int>::max());
}

}  // namespace

absl::Status AcceptLoop::CheckDescriptorLimit() {
  if (DescriptorLimit() >= kLeastDescriptors) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the process may have ", DescriptorLimit(),
                                                    " files open (ulimit -n); at least ", kLeastDescriptors,
                                                    " are needed"));
}

AcceptLoop::AcceptLoop(std::vector<Listener> listeners, std::function<bool(uid_t)> admits, uint32_t most_connections,
                       Log* log)
    : listeners_(std::move(listeners)),
      admits_(std::move(admits)),
      connections_(most_connections),
      log_(*log),
      descriptor_limit_(static_cast<int>(DescriptorLimit()) - kReservedDescriptors),
      stop_event_(eventfd(0, EFD_CLOEXEC)) {
  SORTITION_CHECK(stop_event_ >= 0);
  thread_ = std::thread([this] { Run(); });
}

AcceptLoop::~AcceptLoop() {
  Stop();
  close(stop_event_);
}

void AcceptLoop::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  SORTITION_CHECK(write(stop_event_, &one, sizeof(one)) == sizeof(one));
  thread_.join();
  listeners_.clear();
}

std::vector<ListenAddress> AcceptLoop::addresses() const {
  std::vector<ListenAddress> addresses;
  for (const Listener& listener : listeners_) addresses.push_back(listener.socket->address());
  return addresses;
}

void AcceptLoop::Run() {
  std::vector<pollfd> polled = {{stop_event_, POLLIN, 0}};
  for (const Listener& listener : listeners_) polled.push_back({listener.socket->fd(), POLLIN, 0});
  for (;;) {
    if (poll(polled.data(), polled.size(), -1) < 0) {
      SORTITION_CHECK(errno == EINTR);
      continue;
    }
    if (polled[0].revents != 0) return;
    for (size_t i = 1; i < polled.size(); ++i) {
      if (polled[i].revents != 0) Accept(listeners_[i - 1]);
    }
  }
}

void AcceptLoop::Accept(const Listener& listener) {
  service::Descriptor connection(accept4(listener.socket->fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!connection) {
    if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;  // the client has closed it
    log_.Write(LogLevel::kWarning, "accept_failed",
               {{"listener", listener.socket->address().ToString()}, {"error", std::strerror(errno)}});
    pollfd stop = {stop_event_, POLLIN, 0};
    poll(&stop, 1, kPauseMilliseconds);
    return;
  }
  // The kernel gives the lowest free descriptor, so its number shows whether only the reserve is left.
  if (connection.get() >= descriptor_limit_) {
    log_.Write(LogLevel::kWarning, "connection_refused",
               {{"listener", listener.socket->address().ToString()}, {"descriptors", descriptor_limit_}});
    return;
  }
  // Also refuses other users' processes after somebody has changed the mode of the socket's path.
  if (listener.socket->address().is_unix() && !admits_(service::UserOfPeer(connection.get()))) {
    log_.Write(LogLevel::kWarning, "connection_refused",
               {{"listener", listener.socket->address().ToString()}, {"error", "its user is not admitted"}});
    return;
  }
  if (listener.counts && !connections_.Admit(connection.get())) {
    log_.Write(LogLevel::kWarning, "connection_refused",
               {{"listener", listener.socket->address().ToString()}, {"max_connections", connections_.most()}});
    return;
  }
  listener.take(std::move(connection));
}

}  // namespace sortition::server
