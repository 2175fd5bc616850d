// Invites threads to work, and takes pieces in the jobs' order.
#include "client/local/work_pool.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"

namespace sortition::client {

WorkPool::WorkPool(uint32_t threads)
    : most_busy_(threads != 0 ? threads : std::max(1u, uint32_t(std::thread::hardware_concurrency()))) {}

void WorkPool::Stop() {
  std::vector<std::thread> threads;
  {
    absl::MutexLock lock(&mutex_);
    Work([] { return false; });
    const auto over = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return busy_ == 0 && queue_.empty(); };
    mutex_.Await(absl::Condition(&over));
    stopping_ = true;
    invitation_.SignalAll();
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
}

void WorkPool::Add(std::shared_ptr<Job> job, uint32_t pieces, int32_t priority) {
  SORTITION_CHECK(pieces > 0);
  absl::MutexLock lock(&mutex_);
  auto at = queue_.end();
  while (at != queue_.begin() && std::prev(at)->priority < priority) --at;
  queue_.insert(at, Entry{std::move(job), 0, pieces, priority});
  waiting_ += pieces;
}

void WorkPool::Remove(const void* owner, std::optional<uint64_t> id) {
  std::vector<std::shared_ptr<Job>> removed;  // destroyed without the lock
  absl::MutexLock lock(&mutex_);
  std::erase_if(queue_, [&](Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (entry.job->owner_ != owner || (id && entry.job->id_ != *id)) return false;
    waiting_ -= entry.pieces - entry.next;
    removed.push_back(std::move(entry.job));
    return true;
  });
}

void WorkPool::Start() {
  absl::MutexLock lock(&mutex_);
  Invite();
}

void WorkPool::Help(absl::FunctionRef<bool()> done) {
  absl::MutexLock lock(&mutex_);
  Work(done);
}

void WorkPool::Invite() {
  const uint64_t wanted = std::min<uint64_t>(waiting_, most_busy_ - busy_);
  for (; invited_ < wanted; ++invited_) {
    if (idle_ > invited_) {
      invitation_.Signal();
    } else if (threads_.size() < most_busy_) {
      threads_.emplace_back([this] { Run(); });
    }
  }
}

void WorkPool::Work(absl::FunctionRef<bool()> done) {
  if (busy_ == most_busy_) return;  // a busy thread looks at the queue again before it rests
  ++busy_;
  bool is_over = false;
  while (!queue_.empty() && !is_over) {
    Entry& front = queue_.front();
    std::shared_ptr<Job> job = front.job;
    const uint32_t piece = front.next++;
    if (front.next == front.pieces) queue_.pop_front();
    if (--waiting_ > 0) Invite();
    mutex_.Unlock();
    job->Run(piece);
    job.reset();
    is_over = done();
    mutex_.Lock();
  }
  --busy_;
  if (!queue_.empty()) Invite();
}

void WorkPool::Run() {
  absl::MutexLock lock(&mutex_);
  for (;;) {
    while (invited_ == 0 && !stopping_) {
      ++idle_;
      invitation_.Wait(&mutex_);
      --idle_;
    }
    if (invited_ == 0) return;
    --invited_;
    Work([] { return false; });
  }
}

}  // namespace sortition::client
