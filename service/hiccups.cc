// Intervals in order, and the sleep of each core's thread.
#include "service/hiccups.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "service/clock.h"

namespace sortition::service {
namespace {

constexpr const char* kSchedstat = "/proc/thread-self/schedstat";

// Returns for how long the thread of this schedstat has waited for its core, the file's second number; without bound if
// the kernel does not say.
absl::Duration ReadDelays(int schedstat) {
  char text[96];
  const ssize_t size = pread(schedstat, text, sizeof(text) - 1, 0);
  if (size <= 0) return absl::InfiniteDuration();
  text[size] = '\0';
  char* delay = nullptr;
  std::strtoll(text, &delay, 10);
  return absl::Nanoseconds(std::strtoll(delay, nullptr, 10));
}

void SleepUntil(absl::Time due) {
  const timespec time = absl::ToTimespec(due - absl::UnixEpoch());
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr) == EINTR) {
  }
}

}  // namespace

void Hiccups::Add(absl::Time begin, absl::Time end) {
  if (end - begin < kShortest) return;
  const absl::MutexLock lock(&mutex_);
  for (; !kept_.empty() && kept_.back().end >= begin; kept_.pop_back()) {
    begin = std::min(begin, kept_.back().begin);
    end = std::max(end, kept_.back().end);
  }
  if (kept_.size() == kMostKept) kept_.pop_front();
  kept_.push_back({begin, end});
}

absl::Duration Hiccups::Within(absl::Time begin, absl::Time end) const {
  absl::Duration within;
  const absl::MutexLock lock(&mutex_);
  for (auto hiccup = kept_.rbegin(); hiccup != kept_.rend() && hiccup->end > begin; ++hiccup) {
    within += std::max(std::min(hiccup->end, end) - std::max(hiccup->begin, begin), absl::ZeroDuration());
  }
  return within;
}

absl::StatusOr<std::unique_ptr<HiccupControl>> HiccupControl::Start(absl::Duration period, Woken woken) {
  SORTITION_CHECK(period > absl::ZeroDuration());
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return absl::ErrnoToStatus(errno, "sched_getaffinity");
  std::unique_ptr<HiccupControl> control(new HiccupControl(period, std::move(woken)));
  if (absl::Status status = control->StartThreads(cores); !status.ok()) return status;
  return control;
}

absl::Status HiccupControl::StartThreads(const cpu_set_t& cores) {
  const absl::MutexLock lock(&mutex_);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &cores)) continue;
    due_.push_back(SteadyClock().Now() + period_);
    threads_.emplace_back([this, core, place = threads_.size()] { Run(core, place); });
  }
  const auto prepared = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return prepared_ == due_.size(); };
  mutex_.Await(absl::Condition(&prepared));
  return failure_;
}

HiccupControl::~HiccupControl() {
  stop_.store(true, std::memory_order_relaxed);
  for (std::thread& thread : threads_) thread.join();
}

absl::StatusOr<int> HiccupControl::Prepare(int core) {
  prctl(PR_SET_TIMERSLACK, 1);
  cpu_set_t alone;
  CPU_ZERO(&alone);
  CPU_SET(core, &alone);
  if (sched_setaffinity(0, sizeof(alone), &alone) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("sched_setaffinity to core ", core));
  }
  const int schedstat = open(kSchedstat, O_RDONLY | O_CLOEXEC);
  if (schedstat < 0) return absl::ErrnoToStatus(errno, kSchedstat);
  if (ReadDelays(schedstat) == absl::InfiniteDuration()) {
    close(schedstat);
    return absl::UnavailableError(absl::StrCat("cannot read ", kSchedstat));
  }
  return schedstat;
}

void HiccupControl::Run(int core, size_t place) {
  const absl::StatusOr<int> schedstat = Prepare(core);
  {
    const absl::MutexLock lock(&mutex_);
    ++prepared_;
    failure_.Update(schedstat.status());
  }
  if (!schedstat.ok()) return;
  const absl::Cleanup close_it = [fd = *schedstat] { close(fd); };
  const SteadyClock clock;
  absl::Duration delays = ReadDelays(*schedstat);
  while (!stop_.load(std::memory_order_relaxed)) {
    const absl::Time due = clock.Now() + period_;
    {
      const absl::MutexLock lock(&mutex_);
      due_[place] = due;
    }
    SleepUntil(due);
    const absl::Duration late = clock.Now() - due;
    const absl::Duration delays_now = ReadDelays(*schedstat);
    const absl::Duration threads = std::min(delays_now - std::exchange(delays, delays_now), late);
    hiccups_.Add(due, due + late - threads);
    if (woken_) woken_(late - threads, threads);
  }
}

absl::Time HiccupControl::EarliestDue() const { return *std::min_element(due_.begin(), due_.end()); }

absl::Time HiccupControl::past() const {
  const absl::MutexLock lock(&mutex_);
  return EarliestDue();
}

void HiccupControl::AwaitPast(absl::Time time) const {
  const auto passed = [this, time]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return EarliestDue() > time; };
  const absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&passed));
}

}  // namespace sortition::service
