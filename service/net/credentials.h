// TLS, connections to Unix sockets by user, and the evidence of a call about its caller.
#pragma once

#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_context.h>
#include <sys/types.h>

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "service/followed_files.h"
#include "service/memory/descriptor.h"
#include "service/net/authorization.h"

namespace sortition::server {

// Passes connections to a Unix socket to gRPC, which does not tell a call the user of its peer.
//
// gRPC knows only the acceptor of a call's connection. So there is one acceptor for each user, and it marks its calls
// with that user. Take is called by one thread.
class UserAcceptors {
 public:
  // The most users that one listener can tell apart in its life.
  static constexpr size_t kMostUsers = 16;

  // Adds the acceptors to a server that is about to be built.
  explicit UserAcceptors(grpc::ServerBuilder* builder);
  ~UserAcceptors();

  // Passes on a connection that a process of `user` made to the socket `listener`. Returns false and closes the
  // connection if kMostUsers other users have connected before.
  bool Take(uid_t user, int listener, service::Descriptor connection);

 private:
  class Slot;
  std::vector<std::unique_ptr<Slot>> slots_;
};

// Returns the user of a call that came through UserAcceptors.
std::optional<uid_t> FindPeerUser(const grpc::AuthContext& caller);

struct TlsFiles {
  std::string certificate;  // PEM; the chain, beginning with the server's own
  std::string key;          // PEM
  std::string client_ca;    // PEM; clients must show a certificate that it signed. Empty = they show none
  absl::Duration refresh = absl::Seconds(30);  // period in which replaced files are noticed
};

// A text that others read at a path, in memory of this process. A reader gets the former text or the new one whole.
class ShownText {
 public:
  // The time of modification counts up with each text.
  absl::Status Show(std::string_view text);
  // Valid after the first Show.
  std::string path() const;

 private:
  service::Descriptor file_;
  time_t texts_ = 0;
};

// The certificate, its key and the clients' authorities that new connections meet. gRPC gets only what OpenSSL has
// taken.
class TlsMaterial {
 public:
  // `observer` and `event_log` are not owned and outlive this. The error names the file that cannot be used.
  static absl::StatusOr<std::unique_ptr<TlsMaterial>> Start(TlsFiles files, service::Observer* observer,
                                                            service::EventLog* event_log);

  // Returns credentials that meet a change within a second. This outlives their connections.
  std::shared_ptr<grpc::ServerCredentials> Credentials() const;

  service::FollowedFiles& files() { return followed_; }

 private:
  TlsMaterial(TlsFiles files, service::Observer* observer, service::EventLog* event_log);
  absl::Status Use(const service::FileReader& read);

  const TlsFiles files_;
  ShownText identity_;  // certificate and key
  ShownText authorities_;
  service::FollowedFiles followed_;
};

// Returns the end of validity of the first certificate in a PEM file; nothing if it cannot be read.
std::optional<absl::Time> CertificateEnd(const std::string& path);

// Returns the evidence that the caller of a gRPC call has shown. A certificate counts by its SPIFFE ID (a subject
// alternative name that begins with spiffe://), or else by its first subject alternative name, or else by its common
// name. A certificate with two SPIFFE IDs names no identity.
Evidence EvidenceOf(const grpc::ServerContextBase& call);

}  // namespace sortition::server
