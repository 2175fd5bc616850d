// Where the server listens: addresses as an operator writes them, and bound sockets.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <memory>
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

// Owns the socket; destruction closes it and removes the path of a Unix socket. Immutable after Bind.
class ListenSocket {
 public:
  // Binds and listens. No address is shared with another process: one that is in use is an error. A Unix socket's path
  // gets mode 0600; one that a server which has ended left behind is replaced.
  // `type`: SOCK_STREAM, or of a Unix socket SOCK_SEQPACKET.
  static absl::StatusOr<std::unique_ptr<ListenSocket>> Bind(const ListenAddress& address, int type = SOCK_STREAM);

  // Lets processes of all users connect to a Unix socket; who is served is decided later. An error if the path is gone.
  absl::Status OpenToAllUsers();

  ~ListenSocket();
  ListenSocket(const ListenSocket&) = delete;
  ListenSocket& operator=(const ListenSocket&) = delete;

  int fd() const { return fd_; }
  // With the port that was chosen if 0 was asked for.
  const ListenAddress& address() const { return address_; }

 private:
  ListenSocket(int fd, const ListenAddress& address) : fd_(fd), address_(address) {}

  const int fd_;
  ListenAddress address_;
};

}  // namespace sortition::server
