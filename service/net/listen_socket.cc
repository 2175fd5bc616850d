// Parsing and printing of listen addresses, and binding of sockets.
#include "service/net/listen_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/check.h"

namespace sortition::server {

namespace {

absl::Status Expected(std::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", std::string(text),
                   "\" is no address: expected IPV4:PORT, [IPV6]:PORT or unix:PATH, with a numeric address"));
}

}  // namespace

absl::StatusOr<ListenAddress> ListenAddress::Parse(std::string_view text) {
  // The system would take a byte 0 for the end of the text.
  if (text.find('\0') != text.npos) return absl::InvalidArgumentError("an address has no byte 0");
  ListenAddress result;
  absl::string_view rest(text.data(), text.size());
  if (absl::ConsumePrefix(&rest, "unix:")) {
    auto* local = reinterpret_cast<sockaddr_un*>(&result.storage_);
    if (rest.empty() || rest.size() >= sizeof(local->sun_path)) {
      return absl::InvalidArgumentError(absl::StrCat("\"", std::string(text), "\": the path of a Unix socket has 1 to ",
                                                     sizeof(local->sun_path) - 1, " bytes"));
    }
    local->sun_family = AF_UNIX;
    std::memcpy(local->sun_path, rest.data(), rest.size());
    result.size_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + rest.size() + 1);
    return result;
  }

  const size_t colon = rest.rfind(':');
  uint32_t port = 0;
  if (colon == absl::string_view::npos || !absl::SimpleAtoi(rest.substr(colon + 1), &port) || port > 65535) {
    return Expected(text);
  }
  std::string host(rest.substr(0, colon));
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
    auto* six = reinterpret_cast<sockaddr_in6*>(&result.storage_);
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(static_cast<uint16_t>(port));
    result.size_ = sizeof(*six);
    if (inet_pton(AF_INET6, host.c_str(), &six->sin6_addr) != 1) return Expected(text);
    return result;
  }
  auto* four = reinterpret_cast<sockaddr_in*>(&result.storage_);
  four->sin_family = AF_INET;
  four->sin_port = htons(static_cast<uint16_t>(port));
  result.size_ = sizeof(*four);
  if (inet_pton(AF_INET, host.c_str(), &four->sin_addr) != 1) return Expected(text);
  return result;
}

bool ListenAddress::is_local() const {
  if (is_unix()) return true;
  if (storage_.ss_family == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr);
  }
  return ntohl(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

uint16_t ListenAddress::port() const {
  SORTITION_CHECK(!is_unix());
  // The port is at the same offset in both families.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
}

std::string ListenAddress::unix_path() const {
  SORTITION_CHECK(is_unix());
  return reinterpret_cast<const sockaddr_un*>(&storage_)->sun_path;
}

std::string ListenAddress::ToString() const {
  char text[INET6_ADDRSTRLEN];
  switch (storage_.ss_family) {
    case AF_UNIX:
      return absl::StrCat("unix:", unix_path());
    case AF_INET6:
      inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr, text, sizeof(text));
      return absl::StrCat("[", text, "]:", port());
    default:
      inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr, text, sizeof(text));
      return absl::StrCat(text, ":", port());
  }
}

ListenAddress ListenAddress::OfSocket(int fd) {
  ListenAddress result;
  result.size_ = sizeof(result.storage_);
  SORTITION_CHECK(getsockname(fd, reinterpret_cast<sockaddr*>(&result.storage_), &result.size_) == 0);
  return result;
}

namespace {

// Most connections that wait to be accepted. The kernel reduces it to net.core.somaxconn.
constexpr int kBacklog = 1024;

absl::Status Failed(const ListenAddress& address, const char* what) {
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", address.ToString(), ": ", what, ": ", std::strerror(errno)));
}

void SetOption(int fd, int level, int name, int value) {
  SORTITION_CHECK(setsockopt(fd, level, name, &value, sizeof(value)) == 0);
}

// True if the path holds a socket file on which no process listens.
bool IsAbandoned(const ListenAddress& address, int type) {
  struct stat status;
  if (stat(address.unix_path().c_str(), &status) != 0 || !S_ISSOCK(status.st_mode)) return false;
  const int probe = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (probe < 0) return false;
  const bool refused = connect(probe, address.address(), address.size()) != 0 && errno == ECONNREFUSED;
  close(probe);
  return refused;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ListenSocket>> ListenSocket::Bind(const ListenAddress& address, int type) {
  const int family = address.address()->sa_family;
  const int fd = socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return Failed(address, "socket");
  if (family == AF_UNIX) {
    if (IsAbandoned(address, type)) unlink(address.unix_path().c_str());
    // On Linux the path takes its mode from the socket, so the mode is never wider than this, even for a moment.
    SORTITION_CHECK(fchmod(fd, S_IRUSR | S_IWUSR) == 0);
  } else {
    // Lets a restarted server bind while connections of the previous one linger. Two servers still cannot share a port.
    SetOption(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    // Accepted connections inherit this option.
    SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    if (family == AF_INET6) SetOption(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  }
  if (bind(fd, address.address(), address.size()) != 0) {
    const absl::Status status = Failed(address, "bind");
    close(fd);
    return status;
  }
  // `bound` owns the path of a Unix socket: its destructor removes it.
  std::unique_ptr<ListenSocket> bound(new ListenSocket(fd, family == AF_UNIX ? address : ListenAddress::OfSocket(fd)));
  if (listen(fd, kBacklog) != 0) return Failed(address, "listen");
  return bound;
}

absl::Status ListenSocket::OpenToAllUsers() {
  SORTITION_CHECK(address_.is_unix());
  constexpr mode_t kAll = S_IRUSR | S_IWUSR | S_IRGRP | S_IWGRP | S_IROTH | S_IWOTH;
  if (chmod(address_.unix_path().c_str(), kAll) != 0) return Failed(address_, "chmod");
  return absl::OkStatus();
}

ListenSocket::ListenSocket(int fd, const ListenAddress& address)
    : fd_(fd), address_(address), file_(address.is_unix() ? FileAt(address.unix_path()) : std::nullopt) {}

ListenSocket::FileId ListenSocket::FileAt(const std::string& path) {
  struct stat status;
  if (lstat(path.c_str(), &status) != 0) return std::nullopt;
  return std::pair(status.st_dev, status.st_ino);
}

ListenSocket::~ListenSocket() {
  // While this listens, no other file gets its inode, and no server takes the path for abandoned.
  if (file_ && FileAt(address_.unix_path()) == file_) unlink(address_.unix_path().c_str());
  close(fd_);
}

}  // namespace sortition::server
