// The turns of callers and of the queue's thread.
#include "client/cpp/transport/event_queue.h"

#include <utility>

#include "grpc/support/time.h"
#include "service/clock.h"

namespace sortition::client {
namespace {

absl::Time Now() { return service::SteadyClock().Now(); }

gpr_timespec In(absl::Duration time) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(absl::ToInt64Nanoseconds(time), GPR_TIMESPAN));
}

}  // namespace

EventQueue::EventQueue(std::function<void(void* tag, bool ok)> run)
    : run_(std::move(run)), thread_([this] { Run(); }) {}

void EventQueue::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    mutex_.Await(absl::Condition(this, &EventQueue::HasNoCallers));
  }
  queue_.Shutdown();
  thread_.join();
}

void EventQueue::Attend() {
  absl::MutexLock lock(&mutex_);
  asked_ = true;
}

void EventQueue::Expect() {
  absl::MutexLock lock(&mutex_);
  asked_ = false;  // the caller asks again when it leaves, if need be
  left_ = Now();
  SendThreadAway();
}

void EventQueue::SendThreadAway() {
  if (!thread_reads_ || stopping_) return;
  sent_away_.store(true, std::memory_order_relaxed);
  if (!std::exchange(waking_, true)) alarm_.Set(&queue_, gpr_inf_past(GPR_CLOCK_MONOTONIC), nullptr);
}

void EventQueue::RunEvent(void* tag, bool ok) {
  if (tag != nullptr) return run_(tag, ok);
  absl::MutexLock lock(&mutex_);
  waking_ = false;
}

void EventQueue::BeginLater(std::function<void()> begin) {
  absl::MutexLock lock(&mutex_);
  later_.push_back(std::move(begin));
  has_later_.store(true, std::memory_order_release);
}

void EventQueue::BeginOperations() {
  if (!has_later_.load(std::memory_order_acquire)) return;
  std::vector<std::function<void()>> later;
  {
    absl::MutexLock lock(&mutex_);
    later.swap(later_);
    has_later_.store(false, std::memory_order_relaxed);
  }
  for (const auto& begin : later) begin();
}

void EventQueue::Poll(absl::FunctionRef<bool()> done, absl::FunctionRef<bool()> awaited) {
  mutex_.Lock();
  ++callers_;
  const auto settled = [this, done]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !reading_ || done(); };
  while (!stopping_ && !done()) {
    SendThreadAway();
    has_followers_.store(callers_ > 1, std::memory_order_relaxed);
    mutex_.Await(absl::Condition(&settled));
    if (reading_ || done()) continue;
    reading_ = true;
    mutex_.Unlock();
    ReadEvents(done);
    mutex_.Lock();
    reading_ = false;
  }
  mutex_.Unlock();
  const bool others = awaited();
  absl::MutexLock lock(&mutex_);
  if (--callers_ == 0) asked_ |= others;
  left_ = Now();
}

void EventQueue::ReadEvents(absl::FunctionRef<bool()> done) {
  while (!done()) {
    BeginOperations();
    void* tag;
    bool ok;
    if (queue_.AsyncNext(&tag, &ok, In(kLook)) == grpc::CompletionQueue::GOT_EVENT) RunEvent(tag, ok);
    // Other callers look at their `done` whenever the lock is released.
    if (has_followers_.load(std::memory_order_relaxed)) absl::MutexLock look(&mutex_);
  }
}

void EventQueue::Run() {
  for (bool open = true; open;) {
    {
      absl::MutexLock lock(&mutex_);
      while (!mutex_.AwaitWithTimeout(absl::Condition(this, &EventQueue::IsThreadsTurn), kLinger)) {
        if (callers_ == 0 && !reading_ && Now() - left_ >= kLinger) break;
      }
      reading_ = true;
      thread_reads_ = true;
      sent_away_.store(false, std::memory_order_relaxed);
    }
    do {
      BeginOperations();
      void* tag;
      bool ok;
      open = queue_.Next(&tag, &ok);
      if (open) RunEvent(tag, ok);
    } while (open && !sent_away_.load(std::memory_order_relaxed));
    absl::MutexLock lock(&mutex_);
    reading_ = false;
    thread_reads_ = false;
  }
}

}  // namespace sortition::client
