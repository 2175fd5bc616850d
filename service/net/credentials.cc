// TLS credentials, acceptors by user, and evidence of callers.
#include "service/net/credentials.h"

#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <atomic>
#include <ctime>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace sortition::server {

namespace {

// Property of a connection's context that holds the user. Only this process adds properties to it.
constexpr char kProperty[] = "sortition_user";

// Marks the connections of an acceptor. The calls of one connection arrive in turn, so the first one adds the mark
// before any of them runs.
class UserMark final : public grpc::AuthMetadataProcessor {
 public:
  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata&, grpc::AuthContext* context, OutputMetadata*, OutputMetadata*) override {
    if (context->FindPropertyValues(kProperty).empty()) {
      context->AddProperty(kProperty, absl::StrCat(user_.load(std::memory_order_acquire)));
    }
    return grpc::Status::OK;
  }
  void SetUser(uid_t user) { user_.store(user, std::memory_order_release); }

 private:
  std::atomic<uid_t> user_ = 0;
};

using Acceptor = grpc::experimental::ExternalConnectionAcceptor;

}  // namespace

class UserAcceptors::Slot {
 public:
  explicit Slot(grpc::ServerBuilder* builder) : mark_(std::make_shared<UserMark>()) {
    // These credentials exchange nothing on the wire: it carries the same bytes as plain text.
    const auto credentials = grpc::experimental::LocalServerCredentials(UDS);
    credentials->SetAuthMetadataProcessor(mark_);
    using Builder = grpc::ServerBuilder::experimental_type;
    acceptor_ =
        builder->experimental().AddExternalConnectionAcceptor(Builder::ExternalConnectionType::FROM_FD, credentials);
  }

  bool TakesFor(uid_t user) {
    if (!user_) {
      user_ = user;
      mark_->SetUser(user);
    }
    return *user_ == user;
  }

  void Take(int listener, service::Descriptor connection) {
    Acceptor::NewConnectionParameters parameters;
    parameters.listener_fd = listener;
    parameters.fd = connection.Release();
    acceptor_->HandleNewConnection(&parameters);
  }

 private:
  const std::shared_ptr<UserMark> mark_;
  std::shared_ptr<Acceptor> acceptor_;
  std::optional<uid_t> user_;
};

UserAcceptors::UserAcceptors(grpc::ServerBuilder* builder) {
  for (size_t i = 0; i < kMostUsers; ++i) slots_.push_back(std::make_unique<Slot>(builder));
}

UserAcceptors::~UserAcceptors() = default;

bool UserAcceptors::Take(uid_t user, int listener, service::Descriptor connection) {
  for (const auto& slot : slots_) {
    if (!slot->TakesFor(user)) continue;
    slot->Take(listener, std::move(connection));
    return true;
  }
  return false;
}

std::optional<uid_t> UserOf(const grpc::AuthContext& caller) {
  const std::vector<grpc::string_ref> marks = caller.FindPropertyValues(kProperty);
  if (marks.empty()) return std::nullopt;
  uint32_t user = 0;
  SORTITION_CHECK(absl::SimpleAtoi(absl::string_view(marks.front().data(), marks.front().size()), &user));
  return user;
}

namespace {

constexpr absl::string_view kBearer = "Bearer ";

// Returns the identity among a certificate's names; nothing if there is none, or more than one of SPIFFE.
std::string IdentityOf(const std::vector<grpc::string_ref>& names) {
  constexpr absl::string_view kSpiffe = "spiffe://";
  std::string identity;
  for (const grpc::string_ref& name : names) {
    const absl::string_view text(name.data(), name.size());
    if (absl::StartsWith(text, kSpiffe)) {
      if (absl::StartsWith(identity, kSpiffe)) return "";
      identity = std::string(text);
    } else if (identity.empty()) {
      identity = std::string(text);
    }
  }
  return identity;
}

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

std::optional<absl::Time> CertificateEnd(const std::string& path) {
  const std::unique_ptr<BIO, int (*)(BIO*)> file(BIO_new_file(path.c_str(), "r"), BIO_free);
  if (file == nullptr) return std::nullopt;
  const std::unique_ptr<X509, void (*)(X509*)> certificate(PEM_read_bio_X509(file.get(), nullptr, nullptr, nullptr),
                                                           X509_free);
  std::tm end = {};
  if (certificate == nullptr || ASN1_TIME_to_tm(X509_get0_notAfter(certificate.get()), &end) != 1) return std::nullopt;
  return absl::FromTM(end, absl::UTCTimeZone());
}

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
  // gRPC reports a Unix socket as an identity, too; that is not a certificate.
  if (!evidence.user && caller.IsPeerAuthenticated()) {
    evidence.certificate = IdentityOf(caller.GetPeerIdentity());
  }
  return evidence;
}

}  // namespace sortition::server
