// Raw bytes on a connection: after any bytes the server serves the next connection.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/server/test_server.h"

namespace sortition::fuzz {
namespace {

constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr std::string_view kSettings = std::string_view("\0\0\0\4\0\0\0\0\0", 9);

int Connect(uint32_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(uint16_t(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) Fail("cannot connect");
  const timeval timeout = {10, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  return fd;
}

void Write(int fd, const void* data, size_t size) { (void)send(fd, data, size, MSG_NOSIGNAL); }

// recv that is repeated after a signal: a fuzzer's clock interrupts calls, and the kernel does not restart calls on a
// socket with a time limit.
ssize_t Receive(int fd, void* data, size_t size, int flags) {
  for (;;) {
    const ssize_t count = recv(fd, data, size, flags);
    if (count >= 0 || errno != EINTR) return count;
  }
}

// A server greets every connection that keeps the protocol with its settings.
void ExpectGreeting(uint32_t port) {
  const int fd = Connect(port);
  Write(fd, kPreface.data(), kPreface.size());
  Write(fd, kSettings.data(), kSettings.size());
  char frame[9];
  if (Receive(fd, frame, sizeof(frame), MSG_WAITALL) != ssize_t(sizeof(frame)) || frame[3] != 4) {
    Fail("the server does not greet a new connection");
  }
  close(fd);
}

class Service {
 public:
  Service() {
    const std::string target = server_.target();
    if (!absl::SimpleAtoi(target.substr(target.rfind(':') + 1), &port_)) Fail("no port in " + target);
  }
  uint32_t port() const { return port_; }
  void Stop() { server_.server().Stop(); }

 private:
  server::TestServer server_;
  uint32_t port_ = 0;
};

}  // namespace

void Run(Bytes bytes) {
  static Service& service = *new Service;
  Input input(bytes);
  const int fd = Connect(service.port());
  if (!input.OneIn(8)) {
    Write(fd, kPreface.data(), kPreface.size());
    Write(fd, kSettings.data(), kSettings.size());
  }
  const Bytes rest = input.Rest();
  // Planted defect: one frame of an unknown type stops the server.
  if (planted && rest.size() > 3 && rest[3] > 0x20) service.Stop();
  Write(fd, rest.data(), rest.size());
  shutdown(fd, SHUT_WR);
  char answer[4096];
  while (Receive(fd, answer, sizeof(answer), 0) > 0) {
  }
  close(fd);
  ExpectGreeting(service.port());
}

}  // namespace sortition::fuzz
