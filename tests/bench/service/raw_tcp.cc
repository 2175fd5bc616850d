// Blocking sockets, a forked peer.
#include "tests/bench/service/raw_tcp.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "kernels/check.h"
#include "tests/bench/socket_io.h"

namespace sortition::bench {
namespace {

constexpr size_t kReadBytes = 1 << 20;

struct Request {
  uint64_t bytes;
  uint64_t answer_bytes;
};

void SetNoDelay(int socket) {
  const int on = 1;
  SORTITION_CHECK(setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
}

[[noreturn]] void Serve(int listener) {
  const int socket = accept(listener, nullptr, nullptr);
  SORTITION_CHECK(socket >= 0);
  SetNoDelay(socket);
  std::vector<char> buffer(kReadBytes);
  Request request;
  while (ReadAll(socket, &request, sizeof(request))) {
    for (uint64_t left = request.bytes; left > 0;) {
      const size_t run = std::min<uint64_t>(left, buffer.size());
      if (!ReadAll(socket, buffer.data(), run)) _exit(1);
      left -= run;
    }
    if (!WriteAll(socket, buffer.data(), std::min<uint64_t>(request.answer_bytes, buffer.size()))) _exit(1);
  }
  _exit(0);
}

}  // namespace

RawTcpPeer::RawTcpPeer() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  SORTITION_CHECK(listener >= 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  SORTITION_CHECK(bind(listener, generic, size) == 0 && listen(listener, 1) == 0);
  SORTITION_CHECK(getsockname(listener, generic, &size) == 0);
  peer_ = fork();
  SORTITION_CHECK(peer_ >= 0);
  if (peer_ == 0) Serve(listener);
  close(listener);
  socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  SORTITION_CHECK(socket_ >= 0 && connect(socket_, generic, size) == 0);
  SetNoDelay(socket_);
}

RawTcpPeer::~RawTcpPeer() {
  close(socket_);
  waitpid(peer_, nullptr, 0);
}

void RawTcpPeer::RoundTrip(std::span<const std::byte> bytes, size_t answer_bytes) {
  const Request request{bytes.size(), answer_bytes};
  std::vector<char> answer(answer_bytes);
  SORTITION_CHECK(WriteAll(socket_, &request, sizeof(request)) && WriteAll(socket_, bytes.data(), bytes.size()) &&
                  ReadAll(socket_, answer.data(), answer.size()));
}

}  // namespace sortition::bench
