// Making of certificates with OpenSSL.
#include "tests/server/test_certificates.h"

#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "tests/server/server_process.h"

namespace sortition::server {
namespace {

void AddExtension(X509* certificate, int id, const std::string& value) {
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, id, value.c_str());
  SORTITION_CHECK(extension != nullptr);
  SORTITION_CHECK(X509_add_ext(certificate, extension, -1) == 1);
  X509_EXTENSION_free(extension);
}

template <typename Write>
std::string Pem(Write write) {
  BIO* memory = BIO_new(BIO_s_mem());
  SORTITION_CHECK(write(memory) == 1);
  char* data;
  const long size = BIO_get_mem_data(memory, &data);
  const std::string text(data, static_cast<size_t>(size));
  BIO_free(memory);
  return text;
}

}  // namespace

TestCertificates::TestCertificates(const std::string& name)
    : authority_(Make("test authority", nullptr)),
      authority_path_(TestPath(name + "_authority.pem")),
      server_certificate_path_(TestPath(name + "_server.pem")),
      server_key_path_(TestPath(name + "_server.key")) {
  WriteFile(authority_path_, CertificatePem(authority_));
  RenewServer();
}

TestCertificates::~TestCertificates() {
  unlink(authority_path_.c_str());
  unlink(server_certificate_path_.c_str());
  unlink(server_key_path_.c_str());
}

void TestCertificates::RenewServer(long valid_seconds) const {
  const Pair server = Make("localhost", &authority_, valid_seconds);
  for (const auto& [path, pem] :
       {std::pair(server_certificate_path_, CertificatePem(server)), std::pair(server_key_path_, KeyPem(server))}) {
    WriteFile(path + ".next", pem);
    std::filesystem::rename(path + ".next", path);
  }
}

TestCertificates::Pair TestCertificates::Make(const std::string& name, const Pair* issuer, long valid_seconds) {
  static std::atomic<long> serial = 1;
  Pair pair{std::unique_ptr<EVP_PKEY, Free>(EVP_EC_gen("P-256")), std::unique_ptr<X509, Free>(X509_new())};
  X509* certificate = pair.certificate.get();
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial.fetch_add(1));
  X509_gmtime_adj(X509_getm_notBefore(certificate), -60);
  X509_gmtime_adj(X509_getm_notAfter(certificate), valid_seconds);
  X509_set_pubkey(certificate, pair.key.get());
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.data()), static_cast<int>(name.size()), -1, 0);
  const Pair& signer = issuer == nullptr ? pair : *issuer;
  X509_set_issuer_name(certificate, X509_get_subject_name(signer.certificate.get()));
  AddExtension(certificate, NID_basic_constraints, issuer == nullptr ? "critical,CA:TRUE" : "CA:FALSE");
  const bool is_list = name.find(':') != std::string::npos;
  if (issuer != nullptr) AddExtension(certificate, NID_subject_alt_name, is_list ? name : absl::StrCat("DNS:", name));
  SORTITION_CHECK(X509_sign(certificate, signer.key.get(), EVP_sha256()) > 0);
  return pair;
}

std::string TestCertificates::KeyPem(const Pair& pair) {
  return Pem(
      [&](BIO* out) { return PEM_write_bio_PrivateKey(out, pair.key.get(), nullptr, nullptr, 0, nullptr, nullptr); });
}

std::string TestCertificates::CertificatePem(const Pair& pair) {
  return Pem([&](BIO* out) { return PEM_write_bio_X509(out, pair.certificate.get()); });
}

std::shared_ptr<grpc::ChannelCredentials> TestCertificates::ClientCredentials(const std::string& identity,
                                                                              long valid_seconds) const {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = CertificatePem(authority_);
  if (!identity.empty()) {
    const Pair client = Make(identity, &authority_, valid_seconds);
    options.pem_private_key = KeyPem(client);
    options.pem_cert_chain = CertificatePem(client);
  }
  return grpc::SslCredentials(options);
}

}  // namespace sortition::server
