// Ed25519 by OpenSSL.
#include "service/receipt/receipt_key.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace sortition::service {
namespace {

EVP_PKEY* KeyOf(void* key) { return static_cast<EVP_PKEY*>(key); }

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

absl::StatusOr<File> Open(const std::string& path) {
  File file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (file == nullptr) return absl::InvalidArgumentError(absl::StrCat(path, ": ", std::strerror(errno)));
  return file;
}

absl::Status NoKey(const std::string& path, const char* what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": is no ", what));
}

const unsigned char* Unsigned(const std::string& bytes) { return reinterpret_cast<const unsigned char*>(bytes.data()); }

}  // namespace

ReceiptKey::ReceiptKey(void* key) : key_(key) {
  size_t size = public_key_.size();
  SORTITION_CHECK(EVP_PKEY_get_raw_public_key(KeyOf(key_), public_key_.data(), &size) == 1);
}

ReceiptKey::~ReceiptKey() { EVP_PKEY_free(KeyOf(key_)); }

absl::StatusOr<std::shared_ptr<const ReceiptKey>> ReceiptKey::OfPem(std::string_view text) {
  const std::unique_ptr<BIO, int (*)(BIO*)> pem(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &BIO_free);
  // Without a callback OpenSSL would ask for a passphrase at the terminal.
  const auto no_passphrase = [](char*, int, int, void*) { return -1; };
  EVP_PKEY* const key = PEM_read_bio_PrivateKey(pem.get(), nullptr, no_passphrase, nullptr);
  if (key == nullptr || EVP_PKEY_get_id(key) != EVP_PKEY_ED25519) {
    EVP_PKEY_free(key);
    return absl::InvalidArgumentError("is no private key of Ed25519 in PEM without a passphrase");
  }
  return std::shared_ptr<const ReceiptKey>(new ReceiptKey(key));
}

std::shared_ptr<const ReceiptKey> ReceiptKey::OfBytes(const std::array<uint8_t, 32>& bytes) {
  EVP_PKEY* const key = EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, bytes.data(), bytes.size());
  SORTITION_CHECK(key != nullptr);
  return std::shared_ptr<const ReceiptKey>(new ReceiptKey(key));
}

void ReceiptKey::Sign(ReceiptSignature* signature) const {
  signature->public_key = public_key_;
  const std::string bytes = SignedBytes(*signature);
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  size_t size = signature->signature.size();
  SORTITION_CHECK(EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, KeyOf(key_)) == 1);
  SORTITION_CHECK(EVP_DigestSign(context.get(), signature->signature.data(), &size, Unsigned(bytes), bytes.size()) ==
                  1);
}

bool IsSigned(const ReceiptSignature& signature) {
  const std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key(
      EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, signature.public_key.data(), signature.public_key.size()),
      &EVP_PKEY_free);
  if (key == nullptr) return false;
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  const std::string bytes = SignedBytes(signature);
  SORTITION_CHECK(EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, key.get()) == 1);
  return EVP_DigestVerify(context.get(), signature.signature.data(), signature.signature.size(), Unsigned(bytes),
                          bytes.size()) == 1;
}

absl::StatusOr<std::string> WriteNewKey(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const File file(descriptor < 0 ? nullptr : ::fdopen(descriptor, "wb"), &std::fclose);
  if (file == nullptr) return absl::InvalidArgumentError(absl::StrCat(path, ": ", std::strerror(errno)));
  EVP_PKEY* const key = EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519");
  SORTITION_CHECK(key != nullptr);
  ReceiptPublicKey public_key = {};
  size_t size = public_key.size();
  SORTITION_CHECK(EVP_PKEY_get_raw_public_key(key, public_key.data(), &size) == 1);
  const bool is_written = PEM_write_PrivateKey(file.get(), key, nullptr, nullptr, 0, nullptr, nullptr) == 1;
  EVP_PKEY_free(key);
  if (!is_written || std::fflush(file.get()) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  return absl::BytesToHexString({reinterpret_cast<const char*>(public_key.data()), public_key.size()});
}

absl::StatusOr<ReceiptPublicKey> ReadPublicKey(const std::string& path) {
  ReceiptPublicKey bytes = {};
  auto file = Open(path);
  if (!file.ok()) return file.status();
  if (EVP_PKEY* const key = PEM_read_PUBKEY(file->get(), nullptr, nullptr, nullptr); key != nullptr) {
    size_t size = bytes.size();
    const bool is_read =
        EVP_PKEY_get_id(key) == EVP_PKEY_ED25519 && EVP_PKEY_get_raw_public_key(key, bytes.data(), &size) == 1;
    EVP_PKEY_free(key);
    if (!is_read) return NoKey(path, "public key of Ed25519");
    return bytes;
  }
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  const std::string digits(absl::StripAsciiWhitespace(text.str()));
  const bool is_hex =
      digits.size() == 2 * bytes.size() && digits.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
  if (!is_hex) return NoKey(path, "public key of Ed25519: PEM, or 64 hexadecimal digits");
  const std::string raw = absl::HexStringToBytes(digits);
  std::memcpy(bytes.data(), raw.data(), bytes.size());
  return bytes;
}

}  // namespace sortition::service
