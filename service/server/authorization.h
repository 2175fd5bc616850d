// Who a caller is, and what it may do: the one place that decides it. Every call and every connection to the memory
// socket asks here; health and reflection alone are open to all who can connect.
//
// Without a list of clients (--clients) every caller may sample, its identity is its certificate's or `default`, and
// processes of the server's own user and root administer over a Unix socket. With a list only those that it names are
// served, and processes of the own user and root over a Unix socket.
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
#include "absl/time/time.h"
#include "service/refusal.h"
#include "service/server/log.h"

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

  struct Entry {
    std::string identity;
    Roles roles = kNoRole;
    bool operator==(const Entry&) const = default;
  };

  // The error names the line and what is wrong with it, and holds none of its text.
  static absl::StatusOr<ClientList> Parse(std::string_view text);

  // Null if there is none. The time of FindToken says nothing about how much of a digest is right.
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

// The identity of callers that show none.
inline constexpr char kDefaultIdentity[] = "default";

// What a caller has shown. A token goes before a certificate, which goes before a user.
struct Evidence {
  bool has_token = false;                                 // of any form
  std::optional<TokenDigest> token = std::nullopt;        // of a bearer token; absent if the form is another
  std::optional<std::string> certificate = std::nullopt;  // the first identity in it; may be empty
  std::optional<uid_t> user = std::nullopt;  // of the process at the other end of a Unix socket, where it is known
};

// Thread-safe.
class Authorization {
 public:
  // `file`: path of the list of clients, followed when it is replaced; empty = none. The error names the line that
  // cannot be understood. `log` is not owned and outlives this; null where nobody follows the file.
  static absl::StatusOr<std::unique_ptr<Authorization>> Read(const std::string& file, Log* log);

  // The caller's identity, which is the tenant of what it has, if it has one of the roles. UNAUTHENTICATED where
  // nothing known is shown, PERMISSION_DENIED where the role is missing.
  std::variant<std::string, service::Refusal> Authorize(const Evidence& evidence, Roles any_of) const;

  // Whether a process of this user may connect to a Unix socket at all.
  bool MayConnect(uid_t user) const;

  bool has_list() const { return !file_.empty(); }
  // Whether users beside the own and root are listed.
  bool lists_users() const;

  // Reads the list again if the file is another one than before; called now and then, looks once a second. A list that
  // cannot be understood is logged, and the last one holds on.
  void Follow(absl::Time now);
  // Changes whenever what Authorize says may have.
  uint64_t version() const { return version_.load(std::memory_order_acquire); }

 private:
  // What tells one content of a file from the next.
  struct Stamp {
    uint64_t device = 0, inode = 0, size = 0;
    int64_t seconds = 0, nanoseconds = 0;
    bool operator==(const Stamp&) const = default;
  };

  Authorization(std::string file, Log* log) : file_(std::move(file)), log_(log) {}
  static std::optional<Stamp> StampOf(const std::string& file);
  absl::Status Load();

  const std::string file_;
  Log* const log_;
  std::atomic<uint64_t> version_ = 0;
  mutable absl::Mutex mutex_;
  ClientList list_ ABSL_GUARDED_BY(mutex_);
  std::optional<Stamp> stamp_ ABSL_GUARDED_BY(mutex_);
  absl::Time next_look_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace sortition::server
