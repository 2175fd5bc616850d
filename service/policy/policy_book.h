// The policies in force: read from the operator's file, and again when it or a file of keys changes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "service/event_log.h"
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

  // Reads the files again if one has changed. Called periodically; looks at them once a second. What cannot be used is
  // logged, and the policies in force stay.
  void Follow(absl::Time now);

 private:
  // Identifies one content of a file.
  struct Stamp {
    uint64_t device = 0, inode = 0, size = 0;
    int64_t seconds = 0, nanoseconds = 0;
    bool operator==(const Stamp&) const = default;
  };
  using Stamps = std::map<std::string, std::optional<Stamp>>;  // by path

  PolicyBook(std::string file, const Limits& limits, bool writes_receipts, Observer* observer, EventLog* event_log)
      : file_(std::move(file)),
        limits_(limits),
        writes_receipts_(writes_receipts),
        observer_(*observer),
        event_log_(*event_log) {}
  static std::optional<Stamp> StampOf(const std::string& path);
  absl::Status Load();

  const std::string file_;
  const Limits limits_;
  const bool writes_receipts_;
  Observer& observer_;
  EventLog& event_log_;

  mutable absl::Mutex mutex_;
  std::shared_ptr<const PolicyList> list_ ABSL_GUARDED_BY(mutex_);
  Stamps stamps_ ABSL_GUARDED_BY(mutex_);  // of the files that the last Load has read, the unusable ones too
  absl::Time next_look_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace sortition::service
