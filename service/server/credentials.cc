// TLS credentials and caller identity.
#include "service/server/credentials.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"

namespace sortition::server {
namespace {

// How often replaced certificate files are noticed.
constexpr unsigned kRefreshSeconds = 30;

absl::Status CheckPem(const char* flag, const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return absl::InvalidArgumentError(absl::StrCat("--", flag, ": cannot read ", path));
  if (text.str().find("-----BEGIN ") == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("--", flag, ": ", path, " is not a PEM file"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> TlsCredentials(const TlsFiles& files) {
  if (absl::Status status = CheckPem("tls_certificate", files.certificate); !status.ok()) return status;
  if (absl::Status status = CheckPem("tls_key", files.key); !status.ok()) return status;
  if (!files.client_ca.empty()) {
    if (absl::Status status = CheckPem("tls_client_ca", files.client_ca); !status.ok()) return status;
  }
  grpc::experimental::TlsServerCredentialsOptions options(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(files.key, files.certificate,
                                                                           files.client_ca, kRefreshSeconds));
  options.watch_identity_key_cert_pairs();
  if (!files.client_ca.empty()) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return grpc::experimental::TlsServerCredentials(options);
}

std::string NamespaceOf(const grpc::AuthContext& caller) {
  if (!caller.IsPeerAuthenticated()) return kDefaultNamespace;
  const std::vector<grpc::string_ref> identity = caller.GetPeerIdentity();
  if (identity.empty()) return "";
  return std::string(identity.front().data(), identity.front().size());
}

}  // namespace sortition::server
