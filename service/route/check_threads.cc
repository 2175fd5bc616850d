// A queue of tasks and its threads.
#include "service/route/check_threads.h"

#include <utility>

namespace sortition::service {

CheckThreads::CheckThreads(uint32_t threads) {
  for (uint32_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
}

CheckThreads::~CheckThreads() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

void CheckThreads::Run(absl::AnyInvocable<void()> check) {
  absl::MutexLock lock(&mutex_);
  checks_.push_back(std::move(check));
}

void CheckThreads::Work() {
  for (;;) {
    absl::AnyInvocable<void()> check;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &CheckThreads::CheckOrStop));
      if (checks_.empty()) return;
      check = std::move(checks_.front());
      checks_.pop_front();
    }
    check();
  }
}

}  // namespace sortition::service
