// A counter raised by two threads, under an Abseil lock or ("unlocked") without. Shows that the thread sanitizer of
// this build reports a race and knows Abseil's locks, waits and notifications.
#include <cstring>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

namespace {

constexpr int kRounds = 10000;

struct Shared {
  absl::Mutex mutex;
  int counter = 0;
  absl::Notification half_done;
  int after_half = 0;
};

void Unlocked(Shared* shared) {
  for (int i = 0; i < kRounds; ++i) shared->counter = shared->counter + 1;
}

void Locked(Shared* shared) {
  for (int i = 0; i < kRounds; ++i) {
    const absl::MutexLock lock(&shared->mutex);
    shared->counter = shared->counter + 1;
    if (shared->counter == kRounds) {
      shared->after_half = 1;
      shared->half_done.Notify();
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  Shared shared;
  const bool unlocked = argc == 2 && std::strcmp(argv[1], "unlocked") == 0;
  std::thread first(unlocked ? Unlocked : Locked, &shared);
  std::thread second(unlocked ? Unlocked : Locked, &shared);
  if (!unlocked) {
    shared.half_done.WaitForNotification();
    shared.after_half = 2;
    const auto finished = [&shared] { return shared.counter == 2 * kRounds; };
    const absl::MutexLock lock(&shared.mutex, absl::Condition(&finished));
    shared.counter = 0;
  }
  first.join();
  second.join();
  return 0;
}
