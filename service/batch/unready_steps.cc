// The thread that polls the ready words.
#include "service/batch/unready_steps.h"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "service/memory/ring.h"

namespace sortition::service {

UnreadySteps::UnreadySteps(const Limits& limits, const Clock* clock, Observer* observer, Batcher* batcher)
    : limits_(limits), clock_(*clock), observer_(*observer), batcher_(*batcher) {}

UnreadySteps::~UnreadySteps() {
  std::thread thread;
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
  for (Waiting& waiting : waiting_) {
    waiting.step->Cancel();
    Settle(std::move(waiting));
  }
}

std::optional<Refusal> UnreadySteps::Add(SharedReadyWord word, std::shared_ptr<PendingStep> step,
                                         std::vector<QueuedRow> rows) {
  const absl::Time now = clock_.Now();
  Waiting waiting{std::move(word), std::move(step), std::move(rows), now, {}};
  waiting.deadline = std::min(waiting.step->deadline, now + limits_.ready_wait);
  if (waiting.word.IsSet()) {
    Settle(std::move(waiting));
    return std::nullopt;
  }
  absl::MutexLock lock(&mutex_);
  if (waiting_.size() >= limits_.max_unready_steps) {
    return Refusal{Reason::kOverloaded, "step.logits.ready", Bounds(limits_).max_unready_steps().Text(),
                   "so many steps wait for their logits", limits_.max_queue_time};
  }
  waiting_.push_back(std::move(waiting));
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  return std::nullopt;
}

size_t UnreadySteps::count() const {
  absl::MutexLock lock(&mutex_);
  return waiting_.size();
}

void UnreadySteps::Run() {
  using SteadyClock = std::chrono::steady_clock;
  // Makes short sleeps precise: by default the kernel adds up to 50 µs to each.
  prctl(PR_SET_TIMERSLACK, 1);
  SteadyClock::time_point changed;
  size_t count = 0;
  for (;;) {
    std::vector<Waiting> settled;
    {
      absl::MutexLock lock(&mutex_);
      const auto wanted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopped_ || !waiting_.empty(); };
      mutex_.Await(absl::Condition(&wanted));
      if (stopped_) return;
      if (waiting_.size() != count) changed = SteadyClock::now();
      settled = Take(clock_.Now());
      count = waiting_.size();
    }
    for (Waiting& waiting : settled) Settle(std::move(waiting));
    if (SteadyClock::now() - changed < absl::ToChronoNanoseconds(kSpin)) {
      SpinPause();
    } else if (settled.empty()) {
      std::this_thread::sleep_for(absl::ToChronoNanoseconds(kPause));
    }
  }
}

std::vector<UnreadySteps::Waiting> UnreadySteps::Take(absl::Time now) {
  const auto over = std::stable_partition(waiting_.begin(), waiting_.end(), [&](const Waiting& waiting) {
    return !waiting.word.IsSet() && !waiting.step->cancelled() && waiting.deadline > now;
  });
  std::vector<Waiting> taken(std::make_move_iterator(over), std::make_move_iterator(waiting_.end()));
  waiting_.erase(over, waiting_.end());
  return taken;
}

void UnreadySteps::Settle(Waiting waiting) {
  PendingStep& step = *waiting.step;
  if (!waiting.word.IsSet() && !step.cancelled()) {
    const bool by_limit = waiting.deadline == waiting.since + limits_.ready_wait;
    return Refuse(waiting,
                  Refusal{Reason::kDeadlinePassed, "step.logits.ready",
                          by_limit ? Bounds(limits_).ready_wait().Text() : "step.timeout",
                          absl::StrCat("the word at ", waiting.word.offset(), " of region ", waiting.word.region_id(),
                                       " is ", waiting.word.Read(), ", and not ", waiting.word.value(), " yet")});
  }
  // Read after the word: the step cannot have waited less than its worker took to write.
  const absl::Time now = clock_.Now();
  observer_.StepReady(now - waiting.since);
  step.arrived = now;
  std::vector<uint32_t> indexes;
  for (const QueuedRow& row : waiting.rows) indexes.push_back(row.index);
  auto refusal = batcher_.Submit(waiting.step, std::move(waiting.rows));
  if (!refusal) return;
  waiting.rows.clear();
  for (const uint32_t index : indexes) waiting.rows.emplace_back().index = index;
  Refuse(waiting, *refusal);
}

void UnreadySteps::Refuse(const Waiting& waiting, const Refusal& refusal) {
  std::vector<QueuedOutput> outputs;
  for (const QueuedRow& row : waiting.rows) outputs.push_back({row.index, nullptr, &refusal});
  waiting.step->Deliver(outputs);
}

}  // namespace sortition::service
