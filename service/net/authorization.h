// Decides the identity and the rights of a caller. Every call and every connection to the memory socket asks here; only
// health and reflection are open to all who can connect.
//
// Without a list of clients (--clients) every caller may sample. Its identity is the one in its certificate, or
// `default`. Processes of the server's own user and of root may administer over a Unix socket. With a list only the
// clients that it names are served, and over a Unix socket processes of the server's own user and of root.
//
// The list is a file that an operator writes: identities, their roles, and their credentials.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "service/followed_files.h"
#include "service/refusal.h"

namespace sortition::server {

// A line of the list is IDENTITY ROLE[,ROLE] PROOF, where PROOF is one of
//   sha256:HEX        a bearer token with this SHA-256 digest (the token itself is not in the file)
//   certificate:NAME  a client certificate of that name (EvidenceOf in credentials.h)
//   uid:NUMBER        a process of this user, over a Unix socket
// Empty lines and text after a # are ignored. An identity may have several lines, a PROOF only one.

// Sets of roles.
enum Roles : uint8_t {
  kNoRole = 0,
  kSample = 1,  // sampling streams, and the calls that they need
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
  static constexpr size_t kMostLines = 10'000;

  struct Entry {
    std::string identity;
    Roles roles = kNoRole;
    bool operator==(const Entry&) const = default;
  };

  // The error names the line and the mistake, without quoting the text.
  static absl::StatusOr<ClientList> Parse(std::string_view text);

  // Null if there is none. FindToken takes the same time for every digest, right, partly right or wrong.
  const Entry* FindToken(const TokenDigest& digest) const;
  const Entry* FindCertificate(const std::string& name) const;
  const Entry* FindUser(uid_t user) const;

  bool has_users() const { return !users_.empty(); }

 private:
  absl::Status AddLine(const std::vector<std::string>& words);

  struct Token {
    TokenDigest digest;
    Entry client;
  };
  std::vector<Token> tokens_;
  std::map<std::string, Entry, std::less<>> certificates_;
  std::map<uid_t, Entry> users_;
};

// Identity of callers that show none.
inline constexpr char kDefaultIdentity[] = "default";

// The credentials that a caller has shown. A token is used before a certificate, and a certificate before a user.
struct Evidence {
  bool has_token = false;                                 // in any form
  std::optional<TokenDigest> token = std::nullopt;        // a bearer token's; absent for another form
  std::optional<std::string> certificate = std::nullopt;  // the identity in it; may be empty
  std::optional<uid_t> user = std::nullopt;               // a Unix socket's peer, if known
};

// Thread-safe.
class Authorization {
 public:
  // `file`: path of the list of clients; empty = no list. The error names the line that cannot be parsed. `observer`
  // and `event_log` are not owned and outlive this.
  static absl::StatusOr<std::unique_ptr<Authorization>> Read(const std::string& file, service::Observer* observer,
                                                             service::EventLog* event_log);

  // Returns the caller's identity, which is the tenant that owns its sequences, if it has one of the roles.
  // UNAUTHENTICATED if it shows nothing that is known, PERMISSION_DENIED if it lacks the role.
  std::variant<std::string, service::Refusal> Authorize(const Evidence& evidence, Roles any_of) const;

  // True if a process of this user may connect to a Unix socket at all.
  bool MayConnect(uid_t user) const;

  bool has_list() const { return !file_.empty(); }
  // True if the list names users.
  bool lists_users() const;

  // The file of the list; none without a list.
  service::FollowedFiles& files() { return files_; }
  // Changes whenever the results of Authorize may have changed.
  uint64_t version() const { return version_.load(std::memory_order_acquire); }

 private:
  Authorization(std::string file, service::Observer* observer, service::EventLog* event_log);
  absl::Status Use(const service::FileReader& read);

  const std::string file_;
  std::atomic<uint64_t> version_ = 0;
  mutable absl::Mutex mutex_;
  ClientList list_ ABSL_GUARDED_BY(mutex_);
  service::FollowedFiles files_;
};

}  // namespace sortition::server
