// The queue of rows and the closing of batches.
#include "service/batch/batcher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace sortition::service {

// A closed batch: what was taken from the queue, and where it runs.
struct Batcher::Batch {
  devices::Device* device = nullptr;
  std::vector<Waiting> rows;
  absl::Duration queue_wait = absl::ZeroDuration();  // of its oldest row
};

namespace {

// Hands outcomes to their steps, one call a step.
class Deliveries {
 public:
  void Add(std::shared_ptr<PendingStep> step, RowOutcome outcome) {
    // Rows of one step lie together almost always.
    if (steps_.empty() || steps_.back().step != step) steps_.push_back({std::move(step), {}});
    steps_.back().outcomes.push_back(std::move(outcome));
  }
  void Send() {
    for (auto& [step, outcomes] : steps_) step->Deliver(std::move(outcomes));
    steps_.clear();
  }

 private:
  struct OfStep {
    std::shared_ptr<PendingStep> step;
    std::vector<RowOutcome> outcomes;
  };
  std::vector<OfStep> steps_;
};

}  // namespace

Batcher::Batcher(const Limits& limits, std::vector<devices::Device*> devices, const Clock* clock, Observer* observer)
    : limits_(limits), clock_(*clock), observer_(*observer), router_(std::move(devices)) {}

Batcher::~Batcher() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(
      +[](uint32_t* undelivered) { return *undelivered == 0; }, &undelivered_rows_));
}

std::optional<Refusal> Batcher::Submit(std::shared_ptr<PendingStep> step, std::vector<QueuedRow> rows) {
  {
    absl::MutexLock lock(&mutex_);
    if (queued_rows_ + rows.size() > limits_.max_queued_rows) {
      return Refusal{Reason::kOverloaded, "step", absl::StrCat("max_queued_rows ", limits_.max_queued_rows),
                     absl::StrCat(queued_rows_, " rows are waiting for a device"), absl::Milliseconds(20)};
    }
    auto& queue = queue_[step->priority];
    queued_rows_ += static_cast<uint32_t>(rows.size());
    undelivered_rows_ += static_cast<uint32_t>(rows.size());
    for (QueuedRow& row : rows) queue.push_back({step, std::move(row)});
  }
  Dispatch();
  return std::nullopt;
}

void Batcher::Dispatch() {
  for (;;) {
    std::unique_ptr<Batch> batch;
    Rejects rejects;
    {
      absl::MutexLock lock(&mutex_);
      batch = Close(clock_.Now(), &rejects);
    }
    Deliver(std::move(rejects));
    if (batch == nullptr) return;
    Start(std::move(batch));
  }
}

std::optional<Refusal> Batcher::WhyNot(const PendingStep& step, absl::Time now) const {
  if (step.cancelled()) return Refusal{Reason::kStepCancelled, "", "", "the step was cancelled"};
  if (step.deadline <= now) {
    return Refusal{Reason::kDeadlinePassed, "step.timeout", "", "the step's timeout passed before the row was started"};
  }
  return std::nullopt;
}

std::unique_ptr<Batcher::Batch> Batcher::Close(absl::Time now, Rejects* rejects) {
  devices::Device* device = router_.Choose();
  if (device == nullptr) return nullptr;
  auto batch = std::make_unique<Batch>();
  batch->device = device;
  const uint32_t room = device->description().max_batch_rows;
  while (!queue_.empty() && batch->rows.size() < room) {
    auto& queue = queue_.begin()->second;
    while (!queue.empty() && batch->rows.size() < room) {
      Waiting waiting = std::move(queue.front());
      queue.pop_front();
      --queued_rows_;
      if (std::optional<Refusal> refusal = WhyNot(*waiting.step, now)) {
        rejects->push_back({std::move(waiting.step), waiting.row.index, std::move(*refusal)});
        continue;
      }
      batch->queue_wait = std::max(batch->queue_wait, now - waiting.step->arrived);
      batch->rows.push_back(std::move(waiting));
    }
    if (queue.empty()) queue_.erase(queue_.begin());
  }
  if (batch->rows.empty()) return nullptr;
  router_.Started(device, static_cast<uint32_t>(batch->rows.size()));
  return batch;
}

void Batcher::Start(std::unique_ptr<Batch> batch) {
  std::vector<devices::DeviceRow> rows;
  rows.reserve(batch->rows.size());
  for (Waiting& waiting : batch->rows) rows.push_back(std::move(waiting.row.row));
  devices::Device* device = batch->device;
  observer_.BatchStarted(device->description().name, static_cast<uint32_t>(rows.size()));
  device->Submit(std::move(rows), [this, batch = std::move(batch)](devices::BatchResult result) mutable {
    Finish(std::move(batch), std::move(result));
  });
}

void Batcher::Finish(std::unique_ptr<Batch> batch, devices::BatchResult result) {
  const uint32_t rows = static_cast<uint32_t>(batch->rows.size());
  SORTITION_CHECK(!result.status.ok() || result.answers.size() == rows);
  {
    absl::MutexLock lock(&mutex_);
    router_.Finished(batch->device, rows);
  }
  // The device goes on with the next batch while this one's answers are written.
  Dispatch();
  observer_.BatchDone(batch->device->description().name, rows, batch->queue_wait,
                      absl::Nanoseconds(result.kernel_nanoseconds));
  if (!result.status.ok()) observer_.BatchFailed(batch->device->description().name);
  Deliveries deliveries;
  for (uint32_t i = 0; i < rows; ++i) {
    RowOutcome outcome{batch->rows[i].row.index, {}};
    if (result.status.ok()) {
      outcome.result = std::move(result.answers[i]);
    } else {
      outcome.result =
          Refusal{Reason::kDeviceFailed, "", "", std::string(result.status.message()), absl::Milliseconds(100)};
    }
    deliveries.Add(std::move(batch->rows[i].step), std::move(outcome));
  }
  deliveries.Send();
  absl::MutexLock lock(&mutex_);
  undelivered_rows_ -= rows;
}

void Batcher::Deliver(Rejects rejects) {
  if (rejects.empty()) return;
  const uint32_t rows = static_cast<uint32_t>(rejects.size());
  Deliveries deliveries;
  for (Reject& reject : rejects)
    deliveries.Add(std::move(reject.step), RowOutcome{reject.index, std::move(reject.refusal)});
  deliveries.Send();
  absl::MutexLock lock(&mutex_);
  undelivered_rows_ -= rows;
}

void Batcher::Sweep() {
  Rejects rejects;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = clock_.Now();
    for (auto& [priority, queue] : queue_) {
      std::erase_if(queue, [&](Waiting& waiting) {
        std::optional<Refusal> refusal = WhyNot(*waiting.step, now);
        if (!refusal) return false;
        rejects.push_back({std::move(waiting.step), waiting.row.index, std::move(*refusal)});
        return true;
      });
    }
    queued_rows_ -= static_cast<uint32_t>(rejects.size());
    std::erase_if(queue_, [](const auto& entry) { return entry.second.empty(); });
  }
  Deliver(std::move(rejects));
}

uint32_t Batcher::queued_rows() const {
  absl::MutexLock lock(&mutex_);
  return queued_rows_;
}

}  // namespace sortition::service
