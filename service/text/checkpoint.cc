// Format 1: the byte 1; sampler state, position and history hash, little-endian; then 16 bytes of HMAC-SHA-256 over
// these, the law's version and the owner.
#include "service/text/checkpoint.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/law/version.h"

namespace sortition::service {
namespace {

constexpr uint8_t kFormat = 1;
constexpr size_t kTagBytes = 16;
constexpr size_t kBodyBytes = 1 + sizeof(uint64_t) + sizeof(uint32_t) + sizeof(uint64_t);

template <typename Number>
void Append(Number number, std::string* bytes) {
  for (size_t i = 0; i < sizeof(Number); ++i) bytes->push_back(static_cast<char>(number >> (8 * i) & 0xff));
}

template <typename Number>
Number Take(std::string_view* bytes) {
  Number number = 0;
  for (size_t i = 0; i < sizeof(Number); ++i) {
    number |= static_cast<Number>(static_cast<uint8_t>((*bytes)[i])) << (8 * i);
  }
  bytes->remove_prefix(sizeof(Number));
  return number;
}

// Adds the name with its length, so that names of different owners never give the same bytes.
void AddName(std::string_view name, std::string* bytes) {
  Append(uint64_t{name.size()}, bytes);
  bytes->append(name);
}

std::string TagOf(std::span<const uint8_t> key, const CheckpointOwner& owner, std::string_view body) {
  std::string message("sortition checkpoint");
  message += body;
  Append(uint64_t{law::kLawVersion}, &message);
  Append(owner.identity, &message);
  for (const std::string_view name : {owner.tenant, owner.worker_session, owner.request_id}) AddName(name, &message);
  uint8_t digest[SHA256_DIGEST_LENGTH];
  unsigned int size = 0;
  const auto* bytes = reinterpret_cast<const uint8_t*>(message.data());
  SORTITION_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes, message.size(), digest, &size));
  SORTITION_CHECK(size == sizeof(digest));
  return std::string(reinterpret_cast<const char*>(digest), kTagBytes);
}

}  // namespace

CheckpointKey::CheckpointKey(std::span<const uint8_t> secret, Trust trust) : trust_(trust) {
  static_assert(sizeof(key_) == SHA256_DIGEST_LENGTH);
  SHA256(secret.data(), secret.size(), key_.data());
}

CheckpointKey CheckpointKey::Random(Entropy* entropy) {
  uint64_t words[kLeastBytes / sizeof(uint64_t)];
  for (uint64_t& word : words) word = entropy->Draw();
  return CheckpointKey({reinterpret_cast<const uint8_t*>(words), sizeof(words)}, Trust::kOwn);
}

CheckpointKey CheckpointKey::Trusting(Entropy* entropy) {
  CheckpointKey key = Random(entropy);
  key.trust_ = Trust::kAll;
  return key;
}

absl::StatusOr<CheckpointKey> CheckpointKey::Of(std::string_view secret) {
  if (secret.size() < kLeastBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the checkpoint key has ", secret.size(), " bytes; at least ", kLeastBytes, " are needed"));
  }
  return CheckpointKey({reinterpret_cast<const uint8_t*>(secret.data()), secret.size()}, Trust::kShared);
}

std::string CheckpointKey::Seal(const CheckpointOwner& owner, const Checkpoint& checkpoint) const {
  std::string sealed;
  Append(kFormat, &sealed);
  Append(checkpoint.sampler_state, &sealed);
  Append(checkpoint.position, &sealed);
  Append(checkpoint.history_hash, &sealed);
  return sealed + TagOf(key_, owner, sealed);
}

std::variant<Checkpoint, Refusal> CheckpointKey::Open(const CheckpointOwner& owner, std::string_view sealed,
                                                      const std::string& field) const {
  const auto refuse = [&](std::string message) {
    return Refusal{Reason::kCheckpointRefused, field, "", std::move(message)};
  };
  if (sealed.size() != kBodyBytes + kTagBytes || static_cast<uint8_t>(sealed[0]) != kFormat) {
    return refuse("is no checkpoint of this service");
  }
  std::string_view body = sealed.substr(0, kBodyBytes);
  if (trust_ != Trust::kAll &&
      CRYPTO_memcmp(TagOf(key_, owner, body).data(), sealed.data() + kBodyBytes, kTagBytes) != 0) {
    return refuse(trust_ == Trust::kShared
                      ? "was changed, or is another sequence's, or was sealed under another key"
                      : "was changed, or is another sequence's, or another replica's: this one has a key of its own "
                        "(--checkpoint_key)");
  }
  body.remove_prefix(sizeof(kFormat));
  Checkpoint checkpoint;
  checkpoint.sampler_state = Take<uint64_t>(&body);
  checkpoint.position = Take<uint32_t>(&body);
  checkpoint.history_hash = Take<uint64_t>(&body);
  return checkpoint;
}

}  // namespace sortition::service
