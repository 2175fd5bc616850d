// TLS, and what a call shows of its caller.
#pragma once

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_context.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "service/server/authorization.h"

namespace sortition::server {

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
