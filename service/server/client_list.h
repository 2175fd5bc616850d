// Who may call, as an operator lists it in a file: identities, their roles, and how each is recognised.
//
// A line is IDENTITY ROLE[,ROLE] PROOF, where PROOF is one of
//   sha256:HEX        a bearer token with this SHA-256 digest (the token itself stands nowhere)
//   certificate:NAME  a client certificate whose first subject alternative name (or else common name) is NAME
//   uid:NUMBER        a process of this user, over a Unix socket
// Empty lines and what follows a # are not looked at. An identity may have several lines, a proof only one.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace sortition::server {

// Sets of roles.
enum Roles : uint8_t {
  kNoRole = 0,
  kSample = 1,  // sampling streams, and what they need
  kAdmin = 2,   // AdminService
  kAnyRole = 3,
};

// "sample", "admin", or both separated by a comma.
std::string RoleNames(Roles roles);

using TokenDigest = std::array<uint8_t, 32>;
TokenDigest DigestOfToken(std::string_view token);

// Immutable after parsing.
class ClientList {
 public:
  static constexpr size_t kMostBytes = 1 << 20;
  static constexpr size_t kMostLines = 10'000;

  struct Client {
    std::string identity;
    Roles roles = kNoRole;
    bool operator==(const Client&) const = default;
  };

  // The error names the line and what is wrong with it, and holds none of its text.
  static absl::StatusOr<ClientList> Parse(std::string_view text);

  // Null if there is none. The time of FindToken says nothing about how much of a digest is right.
  const Client* FindToken(const TokenDigest& digest) const;
  const Client* FindCertificate(const std::string& name) const;
  const Client* FindUser(uid_t user) const;

  bool has_users() const { return !users_.empty(); }

 private:
  absl::Status AddLine(const std::vector<std::string>& words);

  struct Token {
    TokenDigest digest;
    Client client;
  };
  std::vector<Token> tokens_;
  std::map<std::string, Client, std::less<>> certificates_;
  std::map<uid_t, Client> users_;
};

}  // namespace sortition::server
