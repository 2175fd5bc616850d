// Paths to socket addresses.
#include "client/cpp/unix_socket.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace sortition::client {
namespace {

constexpr absl::string_view kScheme = "unix:";

}  // namespace

bool IsUnixTarget(absl::string_view target) { return absl::StartsWith(target, kScheme); }

absl::StatusOr<service::Descriptor> ConnectUnix(absl::string_view target, int type, absl::Duration patience) {
  absl::string_view path = target;
  sockaddr_un address = {};
  if (!absl::ConsumePrefix(&path, kScheme) || path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat(target, " is no path of a Unix socket"));
  }
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  service::Descriptor socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  // What a socket waits for when it sends, it waits for when it connects, too; 0 would mean for ever.
  const timeval waits = absl::ToTimeval(std::max(patience, absl::Microseconds(1)));
  const timeval sends = {};
  if (!socket || setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &waits, sizeof(waits)) != 0 ||
      connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &sends, sizeof(sends)) != 0) {
    return absl::UnavailableError(absl::StrCat(target, ": ", std::strerror(errno)));
  }
  return socket;
}

}  // namespace sortition::client
