// Proves that gRPC reads through the guard, by a connection to the server itself.
#include <fcntl.h>
#include <openssl/ssl.h>
#include <poll.h>

#include <memory>
#include <utility>

#include "service/net/guarded_connection.h"

namespace sortition::server {
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
  // Closes the server's end, so that nothing of the check is left.
  ours = service::Descriptor();
  becomes([&] {
    absl::MutexLock lock(&mutex_);
    return !open_.contains(guarded) || open_[guarded] != connection;
  });
  return seen;
}

}  // namespace sortition::server
