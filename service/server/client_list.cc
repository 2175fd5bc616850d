// Parsing of the list of clients.
#include "service/server/client_list.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "service/limits.h"

namespace sortition::server {
namespace {

absl::StatusOr<Roles> ParseRoles(const std::string& text) {
  uint8_t roles = kNoRole;
  for (const absl::string_view name : absl::StrSplit(text, ',')) {
    if (name == "sample") {
      roles |= kSample;
    } else if (name == "admin") {
      roles |= kAdmin;
    } else {
      return absl::InvalidArgumentError("a role is sample or admin; several are separated by commas");
    }
  }
  return static_cast<Roles>(roles);
}

absl::StatusOr<TokenDigest> ParseDigest(absl::string_view hex) {
  TokenDigest digest;
  if (hex.size() != 2 * digest.size() || !std::all_of(hex.begin(), hex.end(), absl::ascii_isxdigit)) {
    return absl::InvalidArgumentError("sha256: wants 64 hexadecimal digits, the SHA-256 digest of the token");
  }
  const std::string bytes = absl::HexStringToBytes(hex);
  std::copy(bytes.begin(), bytes.end(), digest.begin());
  return digest;
}

absl::Status Twice() { return absl::InvalidArgumentError("this proof stands on an earlier line, too"); }

}  // namespace

std::string RoleNames(Roles roles) {
  switch (roles) {
    case kNoRole:
      return "";
    case kSample:
      return "sample";
    case kAdmin:
      return "admin";
    case kAnyRole:
      return "sample,admin";
  }
  __builtin_unreachable();
}

TokenDigest DigestOfToken(std::string_view token) {
  static_assert(std::tuple_size_v<TokenDigest> == SHA256_DIGEST_LENGTH);
  TokenDigest digest;
  SHA256(reinterpret_cast<const uint8_t*>(token.data()), token.size(), digest.data());
  return digest;
}

absl::StatusOr<ClientList> ClientList::Parse(std::string_view text) {
  if (text.size() > kMostBytes) {
    return absl::InvalidArgumentError(absl::StrCat("has ", text.size(), " bytes; at most ", kMostBytes));
  }
  ClientList list;
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    if (++number > kMostLines) return absl::InvalidArgumentError(absl::StrCat("has more than ", kMostLines, " lines"));
    line = line.substr(0, line.find('#'));
    const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    if (absl::Status status = list.AddLine(words); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, ": ", status.message()));
    }
  }
  return list;
}

absl::Status ClientList::AddLine(const std::vector<std::string>& words) {
  if (words.size() != 3) return absl::InvalidArgumentError("expected IDENTITY ROLE[,ROLE] PROOF");
  Client client;
  client.identity = words[0];
  if (client.identity.size() > service::kMaxNameBytes ||
      !std::all_of(client.identity.begin(), client.identity.end(), absl::ascii_isgraph)) {
    return absl::InvalidArgumentError(
        absl::StrCat("an identity is 1 to ", service::kMaxNameBytes, " printable characters of ASCII"));
  }
  auto roles = ParseRoles(words[1]);
  if (!roles.ok()) return roles.status();
  client.roles = *roles;

  absl::string_view proof = words[2];
  if (absl::ConsumePrefix(&proof, "sha256:")) {
    auto digest = ParseDigest(proof);
    if (!digest.ok()) return digest.status();
    if (FindToken(*digest) != nullptr) return Twice();
    tokens_.push_back({*digest, std::move(client)});
    return absl::OkStatus();
  }
  if (absl::ConsumePrefix(&proof, "certificate:") && !proof.empty()) {
    return certificates_.emplace(std::string(proof), std::move(client)).second ? absl::OkStatus() : Twice();
  }
  if (uint32_t user = 0; absl::ConsumePrefix(&proof, "uid:") && absl::SimpleAtoi(proof, &user)) {
    return users_.emplace(user, std::move(client)).second ? absl::OkStatus() : Twice();
  }
  return absl::InvalidArgumentError("a proof is sha256:HEX, certificate:NAME or uid:NUMBER");
}

const ClientList::Client* ClientList::FindToken(const TokenDigest& digest) const {
  const Client* found = nullptr;
  for (const Token& token : tokens_) {
    if (CRYPTO_memcmp(token.digest.data(), digest.data(), digest.size()) == 0) found = &token.client;
  }
  return found;
}

const ClientList::Client* ClientList::FindCertificate(const std::string& name) const {
  const auto it = certificates_.find(name);
  return it == certificates_.end() ? nullptr : &it->second;
}

const ClientList::Client* ClientList::FindUser(uid_t user) const {
  const auto it = users_.find(user);
  return it == users_.end() ? nullptr : &it->second;
}

}  // namespace sortition::server
