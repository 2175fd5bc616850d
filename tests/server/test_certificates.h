// Certificates made for one test: an authority, a server's, and clients'.
#pragma once

#include <grpcpp/security/credentials.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

namespace sortition::server {

// Writes its files at construction and removes them at destruction.
class TestCertificates {
 public:
  // `name` distinguishes its files from other tests'.
  explicit TestCertificates(const std::string& name);
  ~TestCertificates();

  const std::string& authority_path() const { return authority_path_; }
  const std::string& server_certificate_path() const { return server_certificate_path_; }
  const std::string& server_key_path() const { return server_key_path_; }

  // Replaces the server's certificate and its key, as an operator or an agent does.
  void RenewServer(long valid_seconds = kValidSeconds) const;

  // Trusts the authority; shows a certificate for `identity`, none if it is empty. The identity is a DNS name, or
  // subject alternative names as OpenSSL's configuration has them ("DNS:a.test,URI:spiffe://test/a").
  std::shared_ptr<grpc::ChannelCredentials> ClientCredentials(const std::string& identity,
                                                              long valid_seconds = kValidSeconds) const;

 private:
  struct Free {
    void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
    void operator()(X509* certificate) const { X509_free(certificate); }
  };
  struct Pair {
    std::unique_ptr<EVP_PKEY, Free> key;
    std::unique_ptr<X509, Free> certificate;
  };

  static constexpr long kValidSeconds = 3600;

  // Signed by `issuer`, or by itself if that is null: then an authority.
  static Pair Make(const std::string& name, const Pair* issuer, long valid_seconds = kValidSeconds);
  static std::string KeyPem(const Pair& pair);
  static std::string CertificatePem(const Pair& pair);

  const Pair authority_;
  const std::string authority_path_;
  const std::string server_certificate_path_;
  const std::string server_key_path_;
};

}  // namespace sortition::server
