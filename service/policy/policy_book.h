// The policies in force: read from the operator's file, and again when it or a file of keys changes.
#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "service/event_log.h"
#include "service/followed_files.h"
#include "service/limits.h"
#include "service/observer.h"
#include "service/policy/policy.h"

namespace sortition::service {

// Thread-safe.
class PolicyBook {
 public:
  // Reads the file. The error names the setting, the file and the mistake. `observer` and `event_log` are not owned and
  // outlive the book. `writes_receipts`: the server writes receipts to files.
  static absl::StatusOr<std::unique_ptr<PolicyBook>> Start(std::string file, const Limits& limits, bool writes_receipts,
                                                           Observer* observer, EventLog* event_log);

  // Returns the tenant's policy; null if there is none. It stays as it is while the caller holds it.
  std::shared_ptr<const TenantPolicy> Of(absl::string_view tenant) const;

  // The file of policies, and those of keys that it names.
  FollowedFiles& files() { return files_; }

 private:
  PolicyBook(std::string file, const Limits& limits, bool writes_receipts, Observer* observer, EventLog* event_log);
  absl::Status Use(const FileReader& read);

  const std::string file_;
  const Limits limits_;
  const bool writes_receipts_;

  mutable absl::Mutex mutex_;
  std::shared_ptr<const PolicyList> list_ ABSL_GUARDED_BY(mutex_);
  FollowedFiles files_;
};

}  // namespace sortition::service
