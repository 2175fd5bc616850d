// Reading and following of the files of policies.
#include "service/policy/policy_book.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sortition::service {
namespace {

constexpr size_t kMostBytes = 1 << 20;
constexpr absl::Duration kLookEvery = absl::Seconds(1);

absl::StatusOr<std::string> ReadBounded(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMostBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file && !file.eof()) return absl::NotFoundError("cannot be read");
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMostBytes) return absl::InvalidArgumentError(absl::StrCat("has more than ", kMostBytes, " bytes"));
  return text;
}

// Returns an error if a key's id has another key or width than before: texts that name the id would change.
absl::Status CheckRotation(const PolicyList& before, const PolicyList& after) {
  for (const auto& [tenant, policy] : after.policies) {
    const auto old = before.policies.find(tenant);
    if (old == before.policies.end()) continue;
    for (const MarkKey& key : policy->keys) {
      const auto same = std::ranges::find(old->second->keys, key.id, &MarkKey::id);
      if (same == old->second->keys.end() || *same == key) continue;
      return absl::InvalidArgumentError(absl::StrCat("tenant ", tenant, ": watermark.keys: ", key.id,
                                                     ": the id had another key; give the new one another id"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<PolicyBook>> PolicyBook::Start(std::string file, const Limits& limits,
                                                              bool writes_receipts, Observer* observer,
                                                              EventLog* event_log) {
  std::unique_ptr<PolicyBook> book(new PolicyBook(std::move(file), limits, writes_receipts, observer, event_log));
  if (absl::Status status = book->Load(); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--policies: ", book->file_, ": ", status.message()));
  }
  return book;
}

std::shared_ptr<const TenantPolicy> PolicyBook::Of(absl::string_view tenant) const {
  absl::MutexLock lock(&mutex_);
  return list_->Of(tenant);
}

std::optional<PolicyBook::Stamp> PolicyBook::StampOf(const std::string& path) {
  struct stat status;
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return Stamp{status.st_dev, status.st_ino, static_cast<uint64_t>(status.st_size), status.st_mtim.tv_sec,
               status.st_mtim.tv_nsec};
}

absl::Status PolicyBook::Load() {
  Stamps stamps;
  // A file's stamp is taken before its text: the next look then sees a change that happens in between.
  const auto read = [&](const std::string& path) {
    stamps.emplace(path, StampOf(path));
    return ReadBounded(path);
  };
  const absl::StatusOr<std::string> text = read(file_);
  absl::StatusOr<PolicyList> list =
      text.ok() ? ParsePolicies(*text, limits_, writes_receipts_, read) : absl::StatusOr<PolicyList>(text.status());
  absl::MutexLock lock(&mutex_);
  stamps_ = std::move(stamps);
  if (!list.ok()) return list.status();
  if (list_ != nullptr) {
    if (absl::Status status = CheckRotation(*list_, *list); !status.ok()) return status;
  }
  list_ = std::make_shared<const PolicyList>(*std::move(list));
  return absl::OkStatus();
}

void PolicyBook::Follow(absl::Time now) {
  {
    absl::MutexLock lock(&mutex_);
    if (now < next_look_) return;
    next_look_ = now + kLookEvery;
    const auto same = [](const auto& entry) { return StampOf(entry.first) == entry.second; };
    if (std::ranges::all_of(stamps_, same)) return;
  }
  const absl::Status status = Load();
  observer_.Set(Gauge::kPoliciesFailing, status.ok() ? 0 : 1);
  event_log_.PoliciesRead(status.ok(), status.ok() ? file_ : absl::StrCat(file_, ": ", status.message()));
}

}  // namespace sortition::service
