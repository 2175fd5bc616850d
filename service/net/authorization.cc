// Parsing and following of the list of clients, and decisions about callers.
#include "service/net/authorization.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "absl/strings/ascii.h"
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
  const char* digits = hex.data();
  for (uint8_t& byte : digest) {
    std::from_chars(digits, digits + 2, byte, 16);
    digits += 2;
  }
  return digest;
}

absl::Status Twice() { return absl::InvalidArgumentError("this credential stands on an earlier line, too"); }

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
  Entry client;
  client.identity = words[0];
  if (client.identity.size() > service::kMaxNameBytes ||
      !std::all_of(client.identity.begin(), client.identity.end(), absl::ascii_isgraph)) {
    return absl::InvalidArgumentError(
        absl::StrCat("an identity is 1 to ", service::kMaxNameBytes, " printable characters of ASCII"));
  }
  auto roles = ParseRoles(words[1]);
  if (!roles.ok()) return roles.status();
  client.roles = *roles;

  absl::string_view credential = words[2];
  if (absl::ConsumePrefix(&credential, "sha256:")) {
    auto digest = ParseDigest(credential);
    if (!digest.ok()) return digest.status();
    if (FindToken(*digest) != nullptr) return Twice();
    tokens_.push_back({*digest, std::move(client)});
    return absl::OkStatus();
  }
  if (absl::ConsumePrefix(&credential, "certificate:") && !credential.empty()) {
    return certificates_.emplace(std::string(credential), std::move(client)).second ? absl::OkStatus() : Twice();
  }
  if (uint32_t user = 0; absl::ConsumePrefix(&credential, "uid:") && absl::SimpleAtoi(credential, &user)) {
    return users_.emplace(user, std::move(client)).second ? absl::OkStatus() : Twice();
  }
  return absl::InvalidArgumentError("a credential is sha256:HEX, certificate:NAME or uid:NUMBER");
}

const ClientList::Entry* ClientList::FindToken(const TokenDigest& digest) const {
  const Entry* found = nullptr;
  for (const Token& token : tokens_) {
    if (CRYPTO_memcmp(token.digest.data(), digest.data(), digest.size()) == 0) found = &token.client;
  }
  return found;
}

const ClientList::Entry* ClientList::FindCertificate(const std::string& name) const {
  const auto it = certificates_.find(name);
  return it == certificates_.end() ? nullptr : &it->second;
}

const ClientList::Entry* ClientList::FindUser(uid_t user) const {
  const auto it = users_.find(user);
  return it == users_.end() ? nullptr : &it->second;
}

using service::Reason;
using service::Refusal;

namespace {

bool IsOwn(uid_t user) { return user == geteuid() || user == 0; }

Refusal Unauthenticated(std::string field, std::string message) {
  return {Reason::kUnauthenticated, std::move(field), "", std::move(message)};
}

}  // namespace

Authorization::Authorization(std::string file, service::Observer* observer, service::EventLog* event_log)
    : file_(std::move(file)),
      files_(
          service::FollowedFile::kClients, absl::Seconds(1),
          [this](const service::FileReader& read) { return Use(read); }, observer, event_log) {}

absl::StatusOr<std::unique_ptr<Authorization>> Authorization::Read(const std::string& file, service::Observer* observer,
                                                                   service::EventLog* event_log) {
  std::unique_ptr<Authorization> authorization(new Authorization(file, observer, event_log));
  if (file.empty()) return authorization;
  if (absl::Status status = authorization->files_.Start(); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--clients: ", status.message()));
  }
  return authorization;
}

absl::Status Authorization::Use(const service::FileReader& read) {
  const absl::StatusOr<std::string> text = read(file_);
  absl::StatusOr<ClientList> list = text.ok() ? ClientList::Parse(*text) : text.status();
  if (!list.ok()) return absl::InvalidArgumentError(absl::StrCat(file_, ": ", list.status().message()));
  absl::MutexLock lock(&mutex_);
  list_ = *std::move(list);
  version_.fetch_add(1, std::memory_order_release);
  return absl::OkStatus();
}

std::variant<std::string, Refusal> Authorization::Authorize(const Evidence& evidence, Roles any_of) const {
  if (!has_list()) {
    if (evidence.certificate && evidence.certificate->empty()) {
      return Unauthenticated("client_certificate", "the client certificate names no identity");
    }
    if (evidence.certificate && evidence.certificate->size() > service::kMaxNameBytes) {
      return Unauthenticated("client_certificate", "the identity in the client certificate is too long");
    }
    const bool is_own = evidence.user && IsOwn(*evidence.user);
    if ((any_of & kSample) == 0 && !is_own) {
      return Refusal{Reason::kPermissionDenied, "role", RoleNames(any_of),
                     "without --clients only the server's own user and root administer, over a Unix socket"};
    }
    return evidence.certificate ? *evidence.certificate : std::string(kDefaultIdentity);
  }

  absl::MutexLock lock(&mutex_);
  const ClientList::Entry* client = nullptr;
  if (evidence.has_token) {
    if (evidence.token) client = list_.FindToken(*evidence.token);
    if (client == nullptr) return Unauthenticated("authorization", "no client has this bearer token");
  } else if (evidence.certificate) {
    client = list_.FindCertificate(*evidence.certificate);
    if (client == nullptr) return Unauthenticated("client_certificate", "no client is known by this certificate");
  } else if (evidence.user) {
    client = list_.FindUser(*evidence.user);
    // A process of the own user can read this one's memory anyway.
    if (client == nullptr && IsOwn(*evidence.user)) return std::string(kDefaultIdentity);
    if (client == nullptr) return Unauthenticated("user", "no client is known by this user");
  } else {
    return Unauthenticated("authorization", "a bearer token or a client certificate is needed");
  }
  if ((client->roles & any_of) != 0) return client->identity;
  return Refusal{Reason::kPermissionDenied, "role", RoleNames(any_of),
                 absl::StrCat("this client has only the role ", RoleNames(client->roles))};
}

bool Authorization::MayConnect(uid_t user) const {
  if (IsOwn(user)) return true;
  absl::MutexLock lock(&mutex_);
  return list_.FindUser(user) != nullptr;
}

bool Authorization::lists_users() const {
  absl::MutexLock lock(&mutex_);
  return list_.has_users();
}

}  // namespace sortition::server
