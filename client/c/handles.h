// Handles: numbers that callers hold as pointers. They lead to no memory, so a handle that was closed is told from an
// open one.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/c/boundary.h"

namespace sortition::c {

// Returns a number that was never returned before. Numbers are odd and outside of every address space, so no pointer to
// memory and no handle of another kind equals one.
inline uint64_t NextHandle() {
  static std::atomic<uint64_t> last{(uint64_t{1} << 62) + 1};
  return last.fetch_add(2, std::memory_order_relaxed);
}

// The open objects of one kind. Thread-safe. Handle is the caller's type, T the object's. An object lives until it is
// removed and the last call that has found it is over.
template <typename Handle, typename T>
class Handles {
 public:
  static_assert(sizeof(Handle*) == sizeof(uint64_t));

  // The process's only table of this kind. It is never destroyed, because threads may use handles while others exit.
  static Handles& All() {
    static Handles& all = *new Handles;
    return all;
  }

  Handle* Add(std::shared_ptr<T> object) {
    const uint64_t number = NextHandle();
    Part& part = PartOf(number);
    absl::MutexLock lock(&part.mutex);
    part.open.emplace(number, std::move(object));
    return reinterpret_cast<Handle*>(number);
  }

  // `name` is the argument's, for the error.
  absl::StatusOr<std::shared_ptr<T>> Find(const Handle* handle, const Name& name) {
    const auto number = reinterpret_cast<uint64_t>(handle);
    Part& part = PartOf(number);
    {
      absl::MutexLock lock(&part.mutex);
      if (const auto found = part.open.find(number); found != part.open.end()) return found->second;
    }
    return NotOpen(handle, name);
  }

  absl::StatusOr<std::shared_ptr<T>> Remove(const Handle* handle, const Name& name) {
    const auto number = reinterpret_cast<uint64_t>(handle);
    Part& part = PartOf(number);
    {
      absl::MutexLock lock(&part.mutex);
      if (const auto found = part.open.find(number); found != part.open.end()) {
        std::shared_ptr<T> object = std::move(found->second);
        part.open.erase(found);
        return object;
      }
    }
    return NotOpen(handle, name);
  }

 private:
  // Has its own lock, so that threads with different handles rarely wait for each other.
  struct alignas(64) Part {
    absl::Mutex mutex;
    absl::flat_hash_map<uint64_t, std::shared_ptr<T>> open ABSL_GUARDED_BY(mutex);
  };

  Part& PartOf(uint64_t number) { return parts_[number / 2 % parts_.size()]; }

  static absl::Status NotOpen(const Handle* handle, const Name& name) {
    if (handle == nullptr) return Missing(name);
    return Refuse(v1::ERROR_REASON_UNSPECIFIED, name, "an open handle of its kind",
                  "the handle was closed, or is of another kind");
  }

  std::array<Part, 64> parts_;
};

}  // namespace sortition::c
