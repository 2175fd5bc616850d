// TLS, connections to Unix sockets by user, and what a call shows of its caller.
#pragma once

#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_context.h>
#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "service/memory/descriptor.h"
#include "service/server/authorization.h"

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

struct TlsFiles {
  std::string certificate;  // PEM, the chain with the server's own first
  std::string key;          // PEM
  std::string client_ca;    // PEM; if set, clients must show a certificate that it signed. Empty = clients show none
  absl::Duration refresh = absl::Seconds(30);  // how often replaced files are noticed; in whole seconds
};

// Credentials that follow the files when they are replaced. The error names the file that cannot be used.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> TlsCredentials(const TlsFiles& files);

// What the caller of a gRPC call has shown. Of a certificate that is its first subject alternative name, else its
// common name.
Evidence EvidenceOf(const grpc::ServerContextBase& call);

}  // namespace sortition::server
