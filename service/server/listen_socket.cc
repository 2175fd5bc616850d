// Binding of listening sockets.
#include "service/server/listen_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace sortition::server {
namespace {

// Connections that wait to be accepted; the kernel cuts it to net.core.somaxconn.
constexpr int kBacklog = 1024;

absl::Status Failed(const ListenAddress& address, const char* what) {
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", address.ToString(), ": ", what, ": ", std::strerror(errno)));
}

void SetOption(int fd, int level, int name, int value) {
  SORTITION_CHECK(setsockopt(fd, level, name, &value, sizeof(value)) == 0);
}

// Whether a socket file lies at the path to which nobody listens any more.
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
    // On Linux the path takes its mode from the socket, so it is never wider than this, not even for a moment.
    SORTITION_CHECK(fchmod(fd, S_IRUSR | S_IWUSR) == 0);
  } else {
    // Lets a restarted server bind while connections of the last one linger; two servers still cannot share a port.
    SetOption(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    // Accepted connections inherit it.
    SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    if (family == AF_INET6) SetOption(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  }
  if (bind(fd, address.address(), address.size()) != 0) {
    const absl::Status status = Failed(address, "bind");
    close(fd);
    return status;
  }
  // From here on the destructor removes a Unix socket's path, which is ours now.
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

ListenSocket::~ListenSocket() {
  close(fd_);
  if (address_.is_unix()) unlink(address_.unix_path().c_str());
}

}  // namespace sortition::server
