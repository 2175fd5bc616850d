// A bound, listening socket.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "service/server/listen_address.h"

namespace sortition::server {

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
