// Connects Unix sockets, with a bound on the wait.
#include "client/cpp/transport/unix_socket.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

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

absl::StatusOr<service::Descriptor> ConnectUnix(absl::string_view target, int type, const RetryBudget& budget) {
  absl::string_view path = target;
  sockaddr_un address = {};
  if (!absl::ConsumePrefix(&path, kScheme) || path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat(target, " is no path of a Unix socket"));
  }
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  service::Descriptor socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  // Bounds the wait of a send, and so of a connect; 0 = no bound.
  const auto set_wait = [&](absl::Duration wait) {
    const timeval time = absl::ToTimeval(wait);
    return setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time)) == 0;
  };
  bool connected = false;
  while (socket && set_wait(budget.NextWait()) && !connected) {
    connected = connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    if (!connected && ((errno != EAGAIN && errno != EINTR) || budget.over())) break;
  }
  if (!connected || !set_wait(absl::ZeroDuration())) {
    return absl::UnavailableError(absl::StrCat(target, ": ", std::strerror(errno)));
  }
  return socket;
}

}  // namespace sortition::client
