// Admission and drain of streams.
#include "service/calls/stream_set.h"

#include "absl/strings/str_cat.h"

namespace sortition::server {
namespace {

// Time for the final status of streams that the end of the grace has ended.
constexpr absl::Duration kLastWrites = absl::Seconds(1);

}  // namespace

StreamSet::StreamSet(const Config& config, Authorization* authorization, service::Engine* engine, Log* log,
                     const LoadReports* load_reports)
    : engine_(*engine),
      surroundings_{.host = this,
                    .service = &service_,
                    .authorization = authorization,
                    .engine = engine,
                    .log = log,
                    .load_reports = load_reports,
                    .budget = std::make_shared<ReceiveBudget>(config.limits.max_received_bytes),
                    .drain_grace = config.drain_grace},
      samples_({.host = this,
                .service = &service_,
                .authorization = authorization,
                .engine = engine,
                .log = log,
                .load_reports = load_reports,
                .budget = surroundings_.budget}) {}

void StreamSet::Start(const std::vector<std::unique_ptr<CallQueue>>& queues) {
  for (const auto& queue : queues) {
    RequestCall(queue.get());
    samples_.Start(queue.get());
  }
}

void StreamSet::RequestCall(CallQueue* queue) {
  auto call = std::make_shared<StreamCall>(surroundings_, queue);
  {
    absl::MutexLock lock(&mutex_);
    calls_.emplace(call.get(), call);
  }
  // Called without the lock: calls take it under their own locks. The queues are not shut down while calls_ holds the
  // call.
  call->Request();
}

std::optional<service::Refusal> StreamSet::Admit() {
  absl::MutexLock lock(&mutex_);
  if (drain_grace_) {
    return service::Refusal{service::Reason::kDraining, "", "", "the server is shutting down", absl::Seconds(1)};
  }
  const service::Bound most = service::Bounds(engine_.limits()).max_streams();
  if (streams_ >= most.value) {
    return service::Refusal{service::Reason::kOverloaded, "stream", most.Text(),
                            absl::StrCat(streams_, " streams are open"), absl::Seconds(1)};
  }
  ++streams_;
  return std::nullopt;
}

void StreamSet::OnAccepted(StreamCall* call) { RequestCall(call->queue()); }

void StreamSet::OnAnswered() {
  absl::MutexLock lock(&mutex_);
  --streams_;
  ++unread_answers_;
}

void StreamSet::OnAnswerRead() {
  absl::MutexLock lock(&mutex_);
  --unread_answers_;
  if (Idle()) ended_.NotifyAll();
}

void StreamSet::OnOver(StreamCall* call, bool admitted) {
  std::shared_ptr<StreamCall> last;  // destroyed after the lock is released
  absl::MutexLock lock(&mutex_);
  if (admitted) --streams_;
  if (Idle()) ended_.NotifyAll();
  const auto it = calls_.find(call);
  last = std::move(it->second);
  calls_.erase(it);
}

uint32_t StreamSet::Drain(absl::Duration grace) {
  absl::MutexLock lock(&mutex_);
  drain_grace_ = grace;
  ended_.WaitFor(&mutex_, grace + kLastWrites, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return Idle(); });
  return streams_;
}

void StreamSet::AwaitNoCalls() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &StreamSet::NoCalls));
}

void StreamSet::Tick(absl::Time now) {
  samples_.Tick(now);
  std::vector<std::shared_ptr<StreamCall>> calls;
  std::optional<absl::Duration> drain_grace;
  {
    absl::MutexLock lock(&mutex_);
    drain_grace = drain_grace_;
    calls.reserve(calls_.size());
    for (const auto& [pointer, call] : calls_) calls.push_back(call);
  }
  for (const auto& call : calls) call->Tick(now, drain_grace);
}

uint32_t StreamSet::streams() const {
  absl::MutexLock lock(&mutex_);
  return streams_;
}

}  // namespace sortition::server
