// Makes the locks of a prebuilt Abseil visible to ThreadSanitizer; linked into every binary of a thread-sanitizer
// build.
//
// A distribution's Abseil is not instrumented, and its mutex parks on futexes, so ThreadSanitizer would see no order
// between two critical sections and report every guarded field. The functions here take the place of the library's by
// symbol interposition, call the original and tell ThreadSanitizer of the edge. gRPC's own locks are the same
// functions, so order that comes from gRPC is seen as well. Nothing is suppressed: an access outside a lock is still
// reported.
#include <sanitizer/tsan_interface.h>

#include <string>

#include "absl/base/options.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "tests/sanitizer/original.h"

extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);

namespace {

#define SORTITION_STRING_OF(name) #name
#define SORTITION_STRING(name) SORTITION_STRING_OF(name)

// `prefix` and `suffix` enclose Abseil's versioned tenant in the mangled name.
template <typename Function>
Function* OriginalInAbseil(const char* prefix, const char* suffix) {
  const std::string version = SORTITION_STRING(ABSL_OPTION_INLINE_NAMESPACE_NAME);
  return sortition::sanitizer::Original<Function>(prefix + std::to_string(version.size()) + version + suffix);
}

// One call of an original function that waits or unlocks. During the call this thread may evaluate another thread's
// Condition. Those reads happen under the lock but between the two edges told here, so they are not recorded.
class OriginalCall {
 public:
  enum Before { kNotHeld, kHeld };
  enum After { kLetGo, kOwned };

  OriginalCall(void* mutex, Before before, After after) : mutex_(mutex), after_(after) {
    if (before == kHeld) __tsan_release(mutex_);
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  }
  ~OriginalCall() {
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    if (after_ == kOwned) __tsan_acquire(mutex_);
  }
  OriginalCall(const OriginalCall&) = delete;
  OriginalCall& operator=(const OriginalCall&) = delete;

 private:
  void* const mutex_;
  const After after_;
};

// Address of the flag that the inline Notification::HasBeenNotified() loads.
void* NotifiedFlag(const absl::Notification* notification) {
  return const_cast<char*>(reinterpret_cast<const char*>(notification)) + sizeof(absl::Mutex);
}

}  // namespace

// A member function's address is passed as a plain function with `this` as first argument (Itanium C++ ABI).
#define SORTITION_ORIGINAL(suffix, result, ...) \
  static auto* const original = OriginalInAbseil<result(__VA_ARGS__)>("_ZN4absl", suffix)
#define SORTITION_ORIGINAL_CONST(suffix, result, ...) \
  static auto* const original = OriginalInAbseil<result(__VA_ARGS__)>("_ZNK4absl", suffix)

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  SORTITION_ORIGINAL("5Mutex4LockEv", void, Mutex*);
  original(this);
  __tsan_acquire(this);
}

void Mutex::ReaderLock() {
  SORTITION_ORIGINAL("5Mutex10ReaderLockEv", void, Mutex*);
  original(this);
  __tsan_acquire(this);
}

bool Mutex::TryLock() {
  SORTITION_ORIGINAL("5Mutex7TryLockEv", bool, Mutex*);
  const bool locked = original(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

bool Mutex::ReaderTryLock() {
  SORTITION_ORIGINAL("5Mutex13ReaderTryLockEv", bool, Mutex*);
  const bool locked = original(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::Unlock() {
  SORTITION_ORIGINAL("5Mutex6UnlockEv", void, Mutex*);
  const OriginalCall call(this, OriginalCall::kHeld, OriginalCall::kLetGo);
  original(this);
}

void Mutex::ReaderUnlock() {
  SORTITION_ORIGINAL("5Mutex12ReaderUnlockEv", void, Mutex*);
  const OriginalCall call(this, OriginalCall::kHeld, OriginalCall::kLetGo);
  original(this);
}

void Mutex::Await(const Condition& condition) {
  SORTITION_ORIGINAL("5Mutex5AwaitERKNS0_9ConditionE", void, Mutex*, const Condition&);
  const OriginalCall call(this, OriginalCall::kHeld, OriginalCall::kOwned);
  original(this, condition);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  SORTITION_ORIGINAL("5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE", bool, Mutex*, const Condition&,
                     Duration);
  const OriginalCall call(this, OriginalCall::kHeld, OriginalCall::kOwned);
  return original(this, condition, timeout);
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  SORTITION_ORIGINAL("5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE", bool, Mutex*, const Condition&, Time);
  const OriginalCall call(this, OriginalCall::kHeld, OriginalCall::kOwned);
  return original(this, condition, deadline);
}

void Mutex::LockWhen(const Condition& condition) {
  SORTITION_ORIGINAL("5Mutex8LockWhenERKNS0_9ConditionE", void, Mutex*, const Condition&);
  const OriginalCall call(this, OriginalCall::kNotHeld, OriginalCall::kOwned);
  original(this, condition);
}

bool Mutex::LockWhenWithTimeout(const Condition& condition, Duration timeout) {
  SORTITION_ORIGINAL("5Mutex19LockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE", bool, Mutex*, const Condition&,
                     Duration);
  const OriginalCall call(this, OriginalCall::kNotHeld, OriginalCall::kOwned);
  return original(this, condition, timeout);
}

bool Mutex::LockWhenWithDeadline(const Condition& condition, Time deadline) {
  SORTITION_ORIGINAL("5Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE", bool, Mutex*, const Condition&, Time);
  const OriginalCall call(this, OriginalCall::kNotHeld, OriginalCall::kOwned);
  return original(this, condition, deadline);
}

void CondVar::Wait(Mutex* mutex) {
  SORTITION_ORIGINAL("7CondVar4WaitEPNS0_5MutexE", void, CondVar*, Mutex*);
  const OriginalCall call(mutex, OriginalCall::kHeld, OriginalCall::kOwned);
  original(this, mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  SORTITION_ORIGINAL("7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE", bool, CondVar*, Mutex*, Duration);
  const OriginalCall call(mutex, OriginalCall::kHeld, OriginalCall::kOwned);
  return original(this, mutex, timeout);
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  SORTITION_ORIGINAL("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE", bool, CondVar*, Mutex*, Time);
  const OriginalCall call(mutex, OriginalCall::kHeld, OriginalCall::kOwned);
  return original(this, mutex, deadline);
}

void Notification::Notify() {
  SORTITION_ORIGINAL("12Notification6NotifyEv", void, Notification*);
  __tsan_release(NotifiedFlag(this));
  original(this);
}

void Notification::WaitForNotification() const {
  SORTITION_ORIGINAL_CONST("12Notification19WaitForNotificationEv", void, const Notification*);
  original(this);
  __tsan_acquire(NotifiedFlag(this));
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  SORTITION_ORIGINAL_CONST("12Notification30WaitForNotificationWithTimeoutENS0_8DurationE", bool, const Notification*,
                           Duration);
  const bool notified = original(this, timeout);
  if (notified) __tsan_acquire(NotifiedFlag(this));
  return notified;
}

bool Notification::WaitForNotificationWithDeadline(Time deadline) const {
  SORTITION_ORIGINAL_CONST("12Notification31WaitForNotificationWithDeadlineENS0_4TimeE", bool, const Notification*,
                           Time);
  const bool notified = original(this, deadline);
  if (notified) __tsan_acquire(NotifiedFlag(this));
  return notified;
}

bool BlockingCounter::DecrementCount() {
  SORTITION_ORIGINAL("15BlockingCounter14DecrementCountEv", bool, BlockingCounter*);
  __tsan_release(this);
  return original(this);
}

void BlockingCounter::Wait() {
  SORTITION_ORIGINAL("15BlockingCounter4WaitEv", void, BlockingCounter*);
  original(this);
  __tsan_acquire(this);
}

ABSL_NAMESPACE_END
}  // namespace absl
