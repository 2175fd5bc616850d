// TLS credentials, acceptors by user, and evidence of callers.
#include "service/net/credentials.h"

#include <fcntl.h>
#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
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

std::optional<uid_t> FindPeerUser(const grpc::AuthContext& caller) {
  const std::vector<grpc::string_ref> marks = caller.FindPropertyValues(kProperty);
  if (marks.empty()) return std::nullopt;
  uint32_t user = 0;
  SORTITION_CHECK(absl::SimpleAtoi(absl::string_view(marks.front().data(), marks.front().size()), &user));
  return user;
}

namespace {

constexpr absl::string_view kBearer = "Bearer ";

// Returns the identity among a certificate's names; nothing if there is none, or more than one SPIFFE name.
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

absl::Status WrongFile(const char* flag, const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, ": ", path, ": ", what));
}

using Bio = std::unique_ptr<BIO, int (*)(BIO*)>;
using Certificate = std::unique_ptr<X509, void (*)(X509*)>;

Bio MakeBio(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &BIO_free);
}

// Returns the certificates of a text in PEM, at least one.
absl::StatusOr<std::vector<Certificate>> ParseCertificates(const std::string& text) {
  const Bio pem = MakeBio(text);
  std::vector<Certificate> certificates;
  ERR_clear_error();
  for (;;) {
    Certificate certificate(PEM_read_bio_X509_AUX(pem.get(), nullptr, nullptr, nullptr), &X509_free);
    if (certificate == nullptr) break;
    certificates.push_back(std::move(certificate));
  }
  const bool is_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (!is_end) return absl::InvalidArgumentError("has a certificate in PEM that cannot be read");
  if (certificates.empty()) return absl::InvalidArgumentError("has no certificate in PEM");
  return certificates;
}

// Returns certificates and key in PEM, if a server of OpenSSL's takes them together.
absl::StatusOr<std::string> ReadIdentity(const TlsFiles& files, const service::FileReader& read) {
  const auto certificate_text = read(files.certificate);
  const auto certificates = certificate_text.ok() ? ParseCertificates(*certificate_text) : certificate_text.status();
  if (!certificates.ok()) return WrongFile("tls_certificate", files.certificate, certificates.status().message());
  const auto key_text = read(files.key);
  if (!key_text.ok()) return WrongFile("tls_key", files.key, key_text.status().message());
  // Without a callback OpenSSL would ask for a passphrase at the terminal.
  const auto no_passphrase = [](char*, int, int, void*) { return -1; };
  const std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key(
      PEM_read_bio_PrivateKey(MakeBio(*key_text).get(), nullptr, no_passphrase, nullptr), &EVP_PKEY_free);
  const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> server(SSL_CTX_new(TLS_server_method()), &SSL_CTX_free);
  const Bio pem(BIO_new(BIO_s_mem()), &BIO_free);
  bool takes = SSL_CTX_use_certificate(server.get(), certificates->front().get()) == 1;
  for (const Certificate& certificate : *certificates) {
    takes = takes &&
            (certificate == certificates->front() || SSL_CTX_add1_chain_cert(server.get(), certificate.get()) == 1);
    SORTITION_CHECK(PEM_write_bio_X509(pem.get(), certificate.get()) == 1);
  }
  const bool fits = key != nullptr && takes && SSL_CTX_use_PrivateKey(server.get(), key.get()) == 1 &&
                    SSL_CTX_check_private_key(server.get()) == 1;
  ERR_clear_error();
  if (!takes) return WrongFile("tls_certificate", files.certificate, "OpenSSL does not take the certificate");
  if (key == nullptr) {
    return WrongFile("tls_key", files.key, "has no private key in PEM without a passphrase");
  }
  if (!fits) return WrongFile("tls_key", files.key, absl::StrCat("is not the key of ", files.certificate));
  SORTITION_CHECK(PEM_write_bio_PrivateKey(pem.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) == 1);
  char* text = nullptr;
  const long size = BIO_get_mem_data(pem.get(), &text);
  return std::string(text, static_cast<size_t>(size));
}

}  // namespace

absl::Status ShownText::Show(std::string_view text) {
  const auto failed = [] {
    return absl::UnavailableError(absl::StrCat("cannot keep certificates in memory: ", std::strerror(errno)));
  };
  service::Descriptor file(memfd_create("sortition-tls", MFD_CLOEXEC));
  if (!file) return failed();
  const ssize_t written = write(file.get(), text.data(), text.size());
  if (written != static_cast<ssize_t>(text.size())) return failed();
  const timespec time = {.tv_sec = ++texts_, .tv_nsec = 0};
  const timespec times[] = {time, time};
  if (futimens(file.get(), times) != 0) return failed();
  if (!file_) {
    file_ = std::move(file);
  } else if (dup3(file.get(), file_.get(), O_CLOEXEC) < 0) {
    return failed();
  }
  return access(path().c_str(), R_OK) == 0 ? absl::OkStatus() : failed();
}

std::string ShownText::path() const { return absl::StrCat("/proc/self/fd/", file_.get()); }

TlsMaterial::TlsMaterial(TlsFiles files, service::Observer* observer, service::EventLog* event_log)
    : files_(std::move(files)),
      followed_(
          service::FollowedFile::kTls, files_.refresh, [this](const service::FileReader& read) { return Use(read); },
          observer, event_log) {}

absl::StatusOr<std::unique_ptr<TlsMaterial>> TlsMaterial::Start(TlsFiles files, service::Observer* observer,
                                                                service::EventLog* event_log) {
  std::unique_ptr<TlsMaterial> material(new TlsMaterial(std::move(files), observer, event_log));
  if (absl::Status status = material->followed_.Start(); !status.ok()) return status;
  return material;
}

absl::Status TlsMaterial::Use(const service::FileReader& read) {
  // Every file is read, so that a change of any is seen.
  const auto identity = ReadIdentity(files_, read);
  std::string authorities;
  if (!files_.client_ca.empty()) {
    auto text = read(files_.client_ca);
    const absl::Status status = text.ok() ? ParseCertificates(*text).status() : text.status();
    if (identity.ok() && !status.ok()) return WrongFile("tls_client_ca", files_.client_ca, status.message());
    if (text.ok()) authorities = *std::move(text);
  }
  if (!identity.ok()) return identity.status();
  if (!authorities.empty()) {
    if (absl::Status status = authorities_.Show(authorities); !status.ok()) return status;
  }
  return identity_.Show(*identity);
}

std::shared_ptr<grpc::ServerCredentials> TlsMaterial::Credentials() const {
  constexpr unsigned kRefreshSeconds = 1;
  // gRPC reads certificate and key as two files, and again if a time of modification has changed meanwhile. As one file
  // they always belong together.
  const std::string identity = identity_.path();
  const bool asks = !files_.client_ca.empty();
  grpc::experimental::TlsServerCredentialsOptions options(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
          identity, identity, asks ? authorities_.path() : "", kRefreshSeconds));
  options.watch_identity_key_cert_pairs();
  if (asks) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return grpc::experimental::TlsServerCredentials(options);
}

std::optional<absl::Time> CertificateEnd(const std::string& path) {
  const auto text = service::ReadRegularFile(path);
  const auto certificates = text.ok() ? ParseCertificates(*text) : text.status();
  std::tm end = {};
  if (!certificates.ok() || ASN1_TIME_to_tm(X509_get0_notAfter(certificates->front().get()), &end) != 1) {
    return std::nullopt;
  }
  return absl::FromTM(end, absl::UTCTimeZone());
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
  evidence.user = FindPeerUser(caller);
  // gRPC reports a Unix socket as an identity, too; that is not a certificate.
  if (!evidence.user && caller.IsPeerAuthenticated()) {
    evidence.certificate = IdentityOf(caller.GetPeerIdentity());
  }
  return evidence;
}

}  // namespace sortition::server
