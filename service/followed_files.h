// Files that an operator writes: how they are read, at the start and again when they change.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "service/event_log.h"
#include "service/observer.h"

namespace sortition::service {

// The most bytes of one file.
inline constexpr size_t kMostFileBytes = 1 << 20;

// Returns the content of a regular file, and never waits for one of another kind. The error says why there is none,
// without the path. An empty file is none: it may be one whose writing has just begun.
absl::StatusOr<std::string> ReadRegularFile(const std::string& path);

// Reads as ReadRegularFile.
using FileReader = std::function<absl::StatusOr<std::string>(const std::string& path)>;

// Files that are used together. Every look reads them whole and compares the content with that of the last look.
// Thread-safe.
class FollowedFiles {
 public:
  // Reads files and uses what they say. An error says why they cannot be used, and leaves in force what was.
  // UNAVAILABLE: the same content may be used at the next look.
  using Use = std::function<absl::Status(const FileReader& read)>;

  // Is looked at once a `period`. `observer` and `event_log` are not owned and outlive this.
  FollowedFiles(FollowedFile file, absl::Duration period, Use use, Observer* observer, EventLog* event_log);

  // Uses the files for the first time.
  absl::Status Start();

  // Looks if the last look is a period ago.
  void Follow(absl::Time now);

  // Uses the files again if one of them differs from the last look. Reports whether they are used; otherwise what was
  // in force stays.
  void Look();

 private:
  absl::Status Load() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const FollowedFile file_;
  const absl::Duration period_;
  const Use use_;
  Observer& observer_;
  EventLog& event_log_;

  absl::Mutex mutex_;
  // A digest of the content, or the error, of each file that `use_` has read last; by path.
  std::map<std::string, std::string> seen_ ABSL_GUARDED_BY(mutex_);
  absl::Time next_look_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace sortition::service
