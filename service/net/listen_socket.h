// Listening: addresses as an operator writes them, and bound sockets.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"

namespace sortition::server {

// A TCP address and port, or the path of a Unix socket. Immutable after parsing.
class ListenAddress {
 public:
  // Parses "127.0.0.1:50051", "[::1]:50051" or "unix:/run/sortition.sock". Addresses are numeric, so the bound address
  // never depends on a name service. Port 0 = any free port. The error names the text and the expected form.
  static absl::StatusOr<ListenAddress> Parse(std::string_view text);

  bool is_unix() const { return storage_.ss_family == AF_UNIX; }
  // True if only this machine can reach the address.
  bool is_local() const;
  uint16_t port() const;          // of a TCP address
  std::string unix_path() const;  // of a Unix socket

  // Returns the text that Parse takes.
  std::string ToString() const;

  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size() const { return size_; }

  // Returns the address of a bound socket, with the port that the system chose.
  static ListenAddress OfSocket(int fd);

 private:
  sockaddr_storage storage_ = {};
  socklen_t size_ = 0;
};

// Owns a bound, listening socket. Destruction closes it and removes the path of a Unix socket, unless another file has
// taken the path. Immutable after Bind.
class ListenSocket {
 public:
  // Binds and listens. An address that another process uses is an error. The path of a Unix socket gets mode 0600; a
  // path that an ended server left behind is replaced. `type`: SOCK_STREAM, or SOCK_SEQPACKET for a Unix socket.
  static absl::StatusOr<std::unique_ptr<ListenSocket>> Bind(const ListenAddress& address, int type = SOCK_STREAM);

  // Lets processes of all users connect to a Unix socket; AcceptLoop rejects users that are not admitted. An error if
  // the path is gone.
  absl::Status OpenToAllUsers();

  ~ListenSocket();
  ListenSocket(const ListenSocket&) = delete;
  ListenSocket& operator=(const ListenSocket&) = delete;

  int fd() const { return fd_; }
  // The bound address; port 0 has been replaced by the chosen port.
  const ListenAddress& address() const { return address_; }

 private:
  // Device and inode of a file; nothing if there is none.
  using FileId = std::optional<std::pair<dev_t, ino_t>>;

  ListenSocket(int fd, const ListenAddress& address);
  static FileId FileAt(const std::string& path);

  const int fd_;
  const ListenAddress address_;
  const FileId file_;  // that binding a Unix socket has made
};

}  // namespace sortition::server
