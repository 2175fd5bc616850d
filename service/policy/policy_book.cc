// Reading and following of the files of policies.
#include "service/policy/policy_book.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sortition::service {
namespace {

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

PolicyBook::PolicyBook(std::string file, const Limits& limits, bool writes_receipts, Observer* observer,
                       EventLog* event_log)
    : file_(std::move(file)),
      limits_(limits),
      writes_receipts_(writes_receipts),
      files_(
          FollowedFile::kPolicies, absl::Seconds(1), [this](const FileReader& read) { return Use(read); }, observer,
          event_log) {}

absl::StatusOr<std::unique_ptr<PolicyBook>> PolicyBook::Start(std::string file, const Limits& limits,
                                                              bool writes_receipts, Observer* observer,
                                                              EventLog* event_log) {
  std::unique_ptr<PolicyBook> book(new PolicyBook(std::move(file), limits, writes_receipts, observer, event_log));
  if (absl::Status status = book->files_.Start(); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--policies: ", status.message()));
  }
  return book;
}

std::shared_ptr<const TenantPolicy> PolicyBook::Of(absl::string_view tenant) const {
  absl::MutexLock lock(&mutex_);
  return list_->Of(tenant);
}

absl::Status PolicyBook::Use(const FileReader& read) {
  const auto wrong = [&](const absl::Status& status) {
    return absl::InvalidArgumentError(absl::StrCat(file_, ": ", status.message()));
  };
  const absl::StatusOr<std::string> text = read(file_);
  if (!text.ok()) return wrong(text.status());
  absl::StatusOr<PolicyList> list = ParsePolicies(*text, limits_, writes_receipts_, read);
  if (!list.ok()) return wrong(list.status());
  absl::MutexLock lock(&mutex_);
  if (list_ != nullptr) {
    if (absl::Status status = CheckRotation(*list_, *list); !status.ok()) return wrong(status);
  }
  list_ = std::make_shared<const PolicyList>(*std::move(list));
  return absl::OkStatus();
}

}  // namespace sortition::service
