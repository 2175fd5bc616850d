// The key that signs receipts (Ed25519), and the check of a signature.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "service/receipt/record.h"

namespace sortition::service {

// Thread-safe.
class ReceiptKey {
 public:
  // Takes a private key in PEM (PKCS #8), as `openssl genpkey -algorithm ed25519` writes it.
  static absl::StatusOr<std::shared_ptr<const ReceiptKey>> OfPem(std::string_view text);
  // Takes the 32 bytes of a private key.
  static std::shared_ptr<const ReceiptKey> OfBytes(const std::array<uint8_t, 32>& bytes);

  ~ReceiptKey();
  ReceiptKey(const ReceiptKey&) = delete;
  ReceiptKey& operator=(const ReceiptKey&) = delete;

  const ReceiptPublicKey& public_key() const { return public_key_; }
  // Sets the public key and the signature. Takes some 50 µs.
  void Sign(ReceiptSignature* signature) const;

 private:
  explicit ReceiptKey(void* key);

  void* const key_;  // EVP_PKEY, owned
  ReceiptPublicKey public_key_ = {};
};

// Returns true if the signature belongs to its public key. Thread-safe; takes some 150 µs.
bool IsSigned(const ReceiptSignature& signature);

// Writes a new private key to a file that only its owner can read. Returns the public key in hexadecimal digits. The
// error names the file.
absl::StatusOr<std::string> WriteNewKey(const std::string& path);

// Reads a public key: PEM, or 64 hexadecimal digits. The error names the file.
absl::StatusOr<ReceiptPublicKey> ReadPublicKey(const std::string& path);

}  // namespace sortition::service
