// Short-lived locks, which reuse addresses: no order among them is remembered.
#include <gtest/gtest.h>

#include <new>

#include "absl/synchronization/mutex.h"

namespace sortition::lock_order_test {
namespace {

class Pair {
 public:
  Pair() : first_(new (place_) absl::Mutex), second_(new (place_ + sizeof(absl::Mutex)) absl::Mutex) {}
  ~Pair() {
    second_->~Mutex();
    first_->~Mutex();
  }
  absl::Mutex* first() { return first_; }
  absl::Mutex* second() { return second_; }

 private:
  alignas(absl::Mutex) static unsigned char place_[2 * sizeof(absl::Mutex)];
  absl::Mutex* const first_;
  absl::Mutex* const second_;
};

alignas(absl::Mutex) unsigned char Pair::place_[2 * sizeof(absl::Mutex)];

// Abseil of Debian 13 ended the process here.
TEST(LockOrder, NewLocksAtOldPlacesAreNoCycle) {
  for (int round = 0; round < 4; ++round) {
    Pair locks;
    absl::MutexLock outer(round % 2 == 0 ? locks.first() : locks.second());
    absl::MutexLock inner(round % 2 == 0 ? locks.second() : locks.first());
  }
}

}  // namespace
}  // namespace sortition::lock_order_test
