// Who may connect, and who a caller is.
#pragma once

#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace sortition::server {

struct TlsFiles {
  std::string certificate;  // PEM, the chain with the server's own first
  std::string key;          // PEM
  std::string client_ca;    // PEM; if set, clients must show a certificate that it signed. Empty = clients show none
};

// Credentials that follow the files when they are replaced. The error names the file that cannot be used.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> TlsCredentials(const TlsFiles& files);

// The namespace of callers without a certificate.
inline constexpr char kDefaultNamespace[] = "default";

// The namespace of a caller: the first identity of its certificate (the first subject alternative name, else the common
// name), or kDefaultNamespace for connections that are not authenticated. Empty if a certificate names no identity.
std::string NamespaceOf(const grpc::AuthContext& caller);

}  // namespace sortition::server
