// Reads and writes until all is through.
#include "tests/bench/socket_io.h"

#include <sys/socket.h>
#include <unistd.h>

namespace sortition::bench {

bool ReadAll(int socket, void* to, size_t bytes) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = read(socket, at, bytes);
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

bool WriteAll(int socket, const void* from, size_t bytes) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t put = send(socket, at, bytes, MSG_NOSIGNAL);
    if (put <= 0) return false;
    at += put;
    bytes -= static_cast<size_t>(put);
  }
  return true;
}

}  // namespace sortition::bench
