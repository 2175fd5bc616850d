// Connections to a Unix socket on their way into gRPC, which does not tell its calls whose process they come from.
//
// gRPC knows of a call only through which acceptor its connection came. So there are several, each for the processes of
// one user, and each marks its calls with that user.
#pragma once

#include <grpcpp/security/auth_context.h>
#include <grpcpp/server_builder.h>
#include <sys/types.h>

#include <memory>
#include <optional>
#include <vector>

#include "service/memory/descriptor.h"

namespace sortition::server {

// Take is called by one thread.
class UserAcceptors {
 public:
  // Users that one listener ever tells apart.
  static constexpr size_t kMostUsers = 16;

  // Adds the acceptors to a server that is about to be built.
  explicit UserAcceptors(grpc::ServerBuilder* builder);
  ~UserAcceptors();

  // Hands on a connection of a process of `user` to a listening socket. False, and the connection is closed, if as many
  // other users have come before as there may be.
  bool Take(uid_t user, int listener, service::Descriptor connection);

 private:
  class Slot;
  std::vector<std::unique_ptr<Slot>> slots_;
};

// The user of a call that came through UserAcceptors.
std::optional<uid_t> UserOf(const grpc::AuthContext& caller);

}  // namespace sortition::server
