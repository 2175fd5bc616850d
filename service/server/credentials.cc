// TLS credentials, and evidence of callers.
#include "service/server/credentials.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "service/server/user_acceptors.h"

namespace sortition::server {
namespace {

constexpr absl::string_view kBearer = "Bearer ";

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
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
          files.key, files.certificate, files.client_ca, static_cast<unsigned>(absl::ToInt64Seconds(files.refresh))));
  options.watch_identity_key_cert_pairs();
  if (!files.client_ca.empty()) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return grpc::experimental::TlsServerCredentials(options);
}

Evidence EvidenceOf(const grpc::ServerContextBase& call) {
  Evidence evidence;
  const auto [begin, end] = call.client_metadata().equal_range("authorization");
  if (begin != end) {
    evidence.has_token = true;
    absl::string_view value(begin->second.data(), begin->second.size());
    const bool is_bearer = value.size() > kBearer.size() && absl::StartsWithIgnoreCase(value, kBearer);
    if (is_bearer && std::next(begin) == end) {
      value.remove_prefix(kBearer.size());
      evidence.token = DigestOfToken({value.data(), value.size()});
    }
  }
  const grpc::AuthContext& caller = *call.auth_context();
  evidence.user = UserOf(caller);
  // gRPC takes a Unix socket for an identity, too.
  if (!evidence.user && caller.IsPeerAuthenticated()) {
    const std::vector<grpc::string_ref> identity = caller.GetPeerIdentity();
    evidence.certificate =
        identity.empty() ? std::string() : std::string(identity.front().data(), identity.front().size());
  }
  return evidence;
}

}  // namespace sortition::server
