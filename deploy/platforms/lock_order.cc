// Turns off the search for deadlocks that Abseil has where a distribution builds it for debugging, as Debian 13 does.
#include "absl/synchronization/mutex.h"

namespace sortition {
namespace {

// Since 2023, code compiled with NDEBUG does not tell that library when a lock ends. The library then takes a new lock
// for the one that lay there before, sees a cycle that is none, and ends the process.
[[maybe_unused]] const bool is_off = [] {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return true;
}();

}  // namespace
}  // namespace sortition
