// Decisions about callers, and the following of the list of clients.
#include "service/server/authorization.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "service/limits.h"

namespace sortition::server {

using service::Reason;
using service::Refusal;

namespace {

constexpr absl::Duration kLookEvery = absl::Seconds(1);

bool IsOwn(uid_t user) { return user == geteuid() || user == 0; }

Refusal Unauthenticated(std::string field, std::string message) {
  return {Reason::kUnauthenticated, std::move(field), "", std::move(message)};
}

// The file's text; one byte more than is allowed tells that there is too much.
absl::StatusOr<std::string> ReadBounded(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(ClientList::kMostBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file && !file.eof()) return absl::NotFoundError("cannot be read");
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Authorization>> Authorization::Read(const std::string& file, Log* log) {
  std::unique_ptr<Authorization> authorization(new Authorization(file, log));
  if (file.empty()) return authorization;
  if (absl::Status status = authorization->Load(); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--clients: ", file, ": ", status.message()));
  }
  return authorization;
}

std::optional<Authorization::Stamp> Authorization::StampOf(const std::string& file) {
  struct stat status;
  if (stat(file.c_str(), &status) != 0) return std::nullopt;
  return Stamp{status.st_dev, status.st_ino, static_cast<uint64_t>(status.st_size), status.st_mtim.tv_sec,
               status.st_mtim.tv_nsec};
}

absl::Status Authorization::Load() {
  // Before the text: what changes in between is seen as a change at the next look.
  const std::optional<Stamp> stamp = StampOf(file_);
  absl::StatusOr<std::string> text = ReadBounded(file_);
  absl::StatusOr<ClientList> list = text.ok() ? ClientList::Parse(*text) : text.status();
  absl::MutexLock lock(&mutex_);
  stamp_ = stamp;
  if (!list.ok()) return list.status();
  list_ = *std::move(list);
  version_.fetch_add(1, std::memory_order_release);
  return absl::OkStatus();
}

void Authorization::Follow(absl::Time now) {
  if (!has_list()) return;
  {
    absl::MutexLock lock(&mutex_);
    if (now < next_look_) return;
    next_look_ = now + kLookEvery;
    if (StampOf(file_) == stamp_) return;
  }
  const absl::Status status = Load();
  if (status.ok()) {
    log_->Write(LogLevel::kInfo, "clients_replaced", {{"file", file_}});
  } else {
    log_->Write(LogLevel::kError, "clients_refused", {{"file", file_}, {"message", std::string(status.message())}});
  }
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
  const ClientList::Client* client = nullptr;
  if (evidence.has_token) {
    if (evidence.token) client = list_.FindToken(*evidence.token);
    if (client == nullptr) return Unauthenticated("authorization", "no client has this bearer token");
  } else if (evidence.certificate) {
    client = list_.FindCertificate(*evidence.certificate);
    if (client == nullptr) return Unauthenticated("client_certificate", "no client is known by this certificate");
  } else if (evidence.user) {
    client = list_.FindUser(*evidence.user);
    // It could read this process's memory as well.
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
