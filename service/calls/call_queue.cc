// Events of a completion queue.
#include "service/calls/call_queue.h"

#include <algorithm>

#include "kernels/check.h"

namespace sortition::server {

CallQueue::CallQueue(grpc::ServerBuilder* builder, bool takes_connections)
    : queue_(builder->AddCompletionQueue(takes_connections)) {}

CallQueue::~CallQueue() {
  if (!shut_down_) ShutDown();
  Serve();  // gRPC requires an empty queue
}

void CallQueue::Serve() {
  void* event;
  bool ok;
  for (;;) {
    const auto found = queue_->AsyncNext(&event, &ok, gpr_time_0(GPR_CLOCK_MONOTONIC));
    if (found == grpc::CompletionQueue::SHUTDOWN) return;
    const bool none = found == grpc::CompletionQueue::TIMEOUT;
    if (none && !deferred_.empty()) {
      RunDeferred();
      continue;
    }
    was_alone_ = none;
    if (none && !queue_->Next(&event, &ok)) return;
    static_cast<QueueEvent*>(event)->Run(ok);
    if (!deferred_.empty() && ++events_before_ == kEventsBefore) RunDeferred();
  }
}

void CallQueue::Poll() {
  void* event;
  bool ok;
  while (queue_->AsyncNext(&event, &ok, gpr_time_0(GPR_CLOCK_MONOTONIC)) == grpc::CompletionQueue::GOT_EVENT) {
    static_cast<QueueEvent*>(event)->Run(ok);
  }
  while (!deferred_.empty()) RunDeferred();
}

void CallQueue::RunDeferred() {
  QueueEvent* const event = deferred_.front();
  deferred_.pop_front();
  events_before_ = 0;
  event->Run(true);
}

void CallQueue::AddCall() {
  absl::MutexLock lock(&mutex_);
  ++calls_;
}

void CallQueue::RemoveCall() {
  absl::MutexLock lock(&mutex_);
  --calls_;
  SORTITION_CHECK(calls_ >= 0);
}

void CallQueue::AwaitNoCalls() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(
      +[](int* calls) { return *calls == 0; }, &calls_));
}

void CallQueue::ShutDown() {
  shut_down_ = true;
  queue_->Shutdown();
}

UnreadAnswers::Place UnreadAnswers::Add(grpc::ServerContext* call) {
  absl::MutexLock lock(&mutex_);
  return calls_.emplace(calls_.end(), absl::InfiniteFuture(), call);
}

void UnreadAnswers::Remove(Place place) {
  absl::MutexLock lock(&mutex_);
  calls_.erase(place);
}

void UnreadAnswers::Tick(absl::Time now, absl::Duration stalled_write) {
  absl::MutexLock lock(&mutex_);
  for (auto& [seen, call] : calls_) {
    seen = std::min(seen, now);
    if (now - seen > stalled_write) call->TryCancel();
  }
}

}  // namespace sortition::server
