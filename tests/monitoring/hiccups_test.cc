// Hiccups of the machine: the overlap with steps, and the control that finds them.
#include "service/hiccups.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <thread>
#include <vector>

#include "service/clock.h"
#include "tests/support/fake_clock.h"

namespace sortition::service::hiccups_test {
namespace {

class HiccupsTest : public ::testing::Test {
 protected:
  absl::Time At(int milliseconds) const { return start_ + absl::Milliseconds(milliseconds); }
  // Milliseconds of a step that lie in hiccups.
  int64_t Within(int begin, int end) const { return hiccups_.Within(At(begin), At(end)) / absl::Milliseconds(1); }

  const absl::Time start_ = testing::FakeClock().Now();
  Hiccups hiccups_;
};

TEST_F(HiccupsTest, StepOverlapsFromInsideAndBothSides) {
  hiccups_.Add(At(10), At(40));
  EXPECT_EQ(Within(0, 20), 10);
  EXPECT_EQ(Within(20, 25), 5);
  EXPECT_EQ(Within(30, 60), 10);
  EXPECT_EQ(Within(0, 60), 30);
}

TEST_F(HiccupsTest, StepThatOnlyTouchesOneOverlapsNone) {
  hiccups_.Add(At(10), At(40));
  hiccups_.Add(At(60), At(70));
  EXPECT_EQ(hiccups_.Within(At(0), At(10)), absl::ZeroDuration());
  EXPECT_EQ(hiccups_.Within(At(40), At(60)), absl::ZeroDuration());
  EXPECT_EQ(hiccups_.Within(At(70), At(90)), absl::ZeroDuration());
}

TEST_F(HiccupsTest, SeveralInAStepAddUp) {
  hiccups_.Add(At(10), At(12));
  hiccups_.Add(At(20), At(23));
  hiccups_.Add(At(30), At(34));
  EXPECT_EQ(Within(11, 32), 1 + 3 + 2);
}

TEST_F(HiccupsTest, CoresThatHaveOneAtOnceCountOnce) {
  hiccups_.Add(At(20), At(30));
  hiccups_.Add(At(10), At(40));
  hiccups_.Add(At(35), At(39));
  EXPECT_EQ(Within(0, 100), 30);
}

TEST_F(HiccupsTest, ShorterOnesAreNone) {
  hiccups_.Add(At(0), At(0) + Hiccups::kShortest - absl::Nanoseconds(1));
  EXPECT_EQ(hiccups_.Within(At(-10), At(10)), absl::ZeroDuration());
  hiccups_.Add(At(5), At(5) + Hiccups::kShortest);
  EXPECT_EQ(hiccups_.Within(At(-10), At(10)), Hiccups::kShortest);
}

TEST_F(HiccupsTest, OldestAreForgottenBeyondTheBound) {
  const int most = static_cast<int>(Hiccups::kMostKept);
  for (int i = 0; i <= most; ++i) hiccups_.Add(At(10 * i), At(10 * i + 1));
  EXPECT_EQ(Within(0, 5), 0);
  EXPECT_EQ(Within(10, 15), 1);
  EXPECT_EQ(Within(0, 20 * most), most);
}

// Wake-ups of a control, by cause.
class Wakes {
 public:
  HiccupControl::Woken Woken() {
    return [this](absl::Duration machine, absl::Duration threads) {
      const absl::MutexLock lock(&mutex_);
      ++count_;
      negative_ |= machine < absl::ZeroDuration() || threads < absl::ZeroDuration();
      threads_ += threads;
    };
  }
  // Blocks until a wake-up has waited for a thread, but for no more than `most` wake-ups.
  void AwaitThreads(int most) {
    const auto reached = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return threads_ > absl::ZeroDuration() || count_ >= most;
    };
    const absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&reached));
  }
  bool negative() const {
    const absl::MutexLock lock(&mutex_);
    return negative_;
  }
  absl::Duration threads() const {
    const absl::MutexLock lock(&mutex_);
    return threads_;
  }

 private:
  mutable absl::Mutex mutex_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
  bool negative_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Duration threads_ ABSL_GUARDED_BY(mutex_);
};

TEST(HiccupControlTest, WaitForBusyThreadsIsNotTheMachines) {
  std::atomic<bool> stop = false;
  std::vector<std::thread> busy;
  for (unsigned i = 0; i < 2 * std::thread::hardware_concurrency(); ++i) {
    busy.emplace_back([&stop] {
      while (!stop) {
      }
    });
  }
  Wakes wakes;
  const auto control = HiccupControl::Start(absl::Milliseconds(1), wakes.Woken());
  if (control.ok()) wakes.AwaitThreads(5000);
  stop = true;
  for (std::thread& thread : busy) thread.join();
  ASSERT_TRUE(control.ok()) << control.status();
  EXPECT_FALSE(wakes.negative());
  EXPECT_GT(wakes.threads(), absl::ZeroDuration());
}

TEST(HiccupControlTest, ItPassesEveryTime) {
  const auto control = HiccupControl::Start(absl::Milliseconds(1), nullptr);
  ASSERT_TRUE(control.ok()) << control.status();
  const absl::Time now = SteadyClock().Now();
  (*control)->AwaitPast(now);
  EXPECT_GT((*control)->past(), now);
}

// The caller's threads are left where they are.
TEST(HiccupControlTest, OnlyItsThreadsAreBoundToCores) {
  cpu_set_t before, after;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  const auto control = HiccupControl::Start(absl::Milliseconds(1), nullptr);
  ASSERT_TRUE(control.ok()) << control.status();
  ASSERT_EQ(sched_getaffinity(0, sizeof(after), &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

}  // namespace
}  // namespace sortition::service::hiccups_test
