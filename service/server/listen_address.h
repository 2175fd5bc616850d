// Where the server listens, as an operator writes it.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace sortition::server {

// A TCP address and port, or the path of a Unix socket. Immutable after parsing.
class ListenAddress {
 public:
  // "127.0.0.1:50051", "[::1]:50051" or "unix:/run/sortition.sock". Addresses are numeric, so that what is bound never
  // depends on a name service. Port 0 = any free one. The error names the text and what was expected.
  static absl::StatusOr<ListenAddress> Parse(std::string_view text);

  bool is_unix() const { return storage_.ss_family == AF_UNIX; }
  // Whether only this machine can reach it.
  bool is_local() const;
  uint16_t port() const;          // of a TCP address
  std::string unix_path() const;  // of a Unix socket

  // As Parse takes it.
  std::string ToString() const;

  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size() const { return size_; }

  // The address a bound socket really has.
  static ListenAddress OfSocket(int fd);

 private:
  sockaddr_storage storage_ = {};
  socklen_t size_ = 0;
};

}  // namespace sortition::server
