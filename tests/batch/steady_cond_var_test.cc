// Waits end at a notification or when their time has passed.
#include "service/steady_cond_var.h"

#include <gtest/gtest.h>

#include <thread>

#include "service/clock.h"

namespace sortition::service::steady_cond_var_test {
namespace {

class SteadyCondVarTest : public ::testing::Test {
 protected:
  bool Wait(absl::Duration most) {
    absl::MutexLock lock(&mutex_);
    return changed_.WaitFor(&mutex_, most, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done_; });
  }
  void SetDone() {
    absl::MutexLock lock(&mutex_);
    done_ = true;
    changed_.NotifyAll();
  }

  absl::Mutex mutex_;
  SteadyCondVar changed_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

TEST_F(SteadyCondVarTest, DoneNeedsNoWait) {
  SetDone();
  EXPECT_TRUE(Wait(absl::ZeroDuration()));
}

TEST_F(SteadyCondVarTest, NotificationEndsTheWait) {
  std::thread other([this] { SetDone(); });
  EXPECT_TRUE(Wait(absl::InfiniteDuration()));
  other.join();
}

TEST_F(SteadyCondVarTest, TimeEndsTheWait) {
  const absl::Time start = SteadyClock().Now();
  EXPECT_FALSE(Wait(absl::Milliseconds(20)));
  EXPECT_GE(SteadyClock().Now() - start, absl::Milliseconds(20));
}

}  // namespace
}  // namespace sortition::service::steady_cond_var_test
