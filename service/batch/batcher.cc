// The queue of rows and the closing of batches.
#include "service/batch/batcher.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "service/batch/admission.h"

namespace sortition::service {

// A closed batch: what was taken from the queue, and where it runs.
struct Batcher::Batch {
  devices::Device* device = nullptr;
  RouteReason reason = RouteReason::kFastest;
  Router::Batch shape;
  std::vector<WaitingRow> rows;
  std::vector<uint32_t> checked;                     // rows that are compared with the reference
  absl::Duration queue_wait = absl::ZeroDuration();  // of its oldest row
};

namespace {

// Hands outcomes to their steps, one call a step.
class Deliveries {
 public:
  void Add(std::shared_ptr<PendingStep> step, RowOutcome outcome) {
    // The rows of a client who is alone lie together.
    if (steps_.empty()) steps_.push_back({step, {}});
    if (steps_[last_].step != step) {
      if (places_.empty()) places_.emplace(steps_[0].step.get(), 0);
      last_ = places_.try_emplace(step.get(), steps_.size()).first->second;
      if (last_ == steps_.size()) steps_.push_back({std::move(step), {}});
    }
    steps_[last_].outcomes.push_back(std::move(outcome));
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
  absl::flat_hash_map<const PendingStep*, size_t> places_;  // in steps_
  size_t last_ = 0;
};

}  // namespace

Batcher::Batcher(const Limits& limits, std::vector<devices::Device*> devices, const Clock* clock, Observer* observer,
                 BatcherOptions options)
    : limits_(limits),
      options_(std::move(options)),
      clock_(*clock),
      observer_(*observer),
      router_(devices, options_.policy, options_.seed),
      queue_({devices.begin(), devices.end()}),
      devices_(devices),
      lottery_(options_.recheck_share, options_.seed) {}

Batcher::~Batcher() {
  const auto done = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return undelivered_rows_ == 0 && self_tests_ == 0; };
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&done));
}

std::optional<Refusal> Batcher::Submit(std::shared_ptr<PendingStep> step, std::vector<QueuedRow> rows) {
  {
    absl::MutexLock lock(&mutex_);
    if (auto refusal = WhyNotAdmitted(limits_, queue_, router_, *step, rows, clock_.Now())) return refusal;
    AddRows(step, std::move(rows), step->arrived);
  }
  Dispatch();
  return std::nullopt;
}

void Batcher::Continue(std::shared_ptr<PendingStep> step, std::vector<QueuedRow> rows) {
  {
    absl::MutexLock lock(&mutex_);
    AddRows(step, std::move(rows), clock_.Now());
  }
  Dispatch();
}

void Batcher::AddRows(const std::shared_ptr<PendingStep>& step, std::vector<QueuedRow> rows, absl::Time since) {
  undelivered_rows_ += static_cast<uint32_t>(rows.size());
  step->waiting_rows_ += static_cast<uint32_t>(rows.size());
  for (QueuedRow& row : rows) {
    queue_.Add({step, std::move(row), step->client, step->priority, next_number_++, since});
  }
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
  // A batch that is to wait for its device holds up none that another device may have.
  for (const Router::Batch& open : queue_.OpenBatches()) {
    if (!router_.CanServe(open.needs())) {
      RefuseUnservable(rejects);
      continue;
    }
    const Router::Choice choice = router_.Choose(open, now);
    if (choice.device == nullptr) continue;
    auto batch = std::make_unique<Batch>();
    batch->device = choice.device;
    batch->reason = choice.reason;
    batch->shape.memory = open.memory;
    FillBatch(batch.get(), now, rejects);
    if (batch->rows.empty()) continue;  // nobody waits for those rows any more
    router_.Started(batch->device, batch->shape, now);
    return batch;
  }
  return nullptr;
}

void Batcher::RefuseUnservable(Rejects* rejects) {
  queue_.EraseIf([&](WaitingRow& waiting) {
    mutex_.AssertHeld();
    if (router_.CanServe(NeedsOf(waiting.row.row))) return false;
    --waiting.step->waiting_rows_;
    rejects->push_back({std::move(waiting.step), waiting.row.index,
                        Refusal{Reason::kDeviceFailed, "", "", "no device serves that is able to take the row",
                                absl::Milliseconds(100)}});
    return true;
  });
}

void Batcher::FillBatch(Batch* batch, absl::Time now, Rejects* rejects) {
  const devices::DeviceDescription& description = batch->device->description();
  const bool moves = batch->shape.memory != description.memory;
  const Costs costs = router_.costs(batch->device).At(now);
  const double most = costs.launch + std::max(absl::ToDoubleSeconds(kLongestBatch), 9 * costs.launch);
  while (batch->rows.size() < description.max_batch_rows &&
         costs.Seconds({static_cast<uint32_t>(batch->rows.size()), batch->shape.bytes, moves}) < most) {
    std::optional<WaitingRow> waiting = queue_.TakeFor(description, batch->shape.memory);
    if (!waiting) break;
    --waiting->step->waiting_rows_;
    if (std::optional<Refusal> refusal = WhyNot(*waiting->step, now)) {
      rejects->push_back({std::move(waiting->step), waiting->row.index, std::move(*refusal)});
      continue;
    }
    const Router::Needs needs = NeedsOf(waiting->row.row);
    batch->shape.vocabulary = std::max(batch->shape.vocabulary, needs.vocabulary);
    batch->shape.features |= needs.features;
    batch->shape.bytes += BytesOf(waiting->row.row);
    batch->queue_wait = std::max(batch->queue_wait, now - waiting->since);
    if (lottery_.Draw()) batch->checked.push_back(static_cast<uint32_t>(batch->rows.size()));
    batch->rows.push_back(*std::move(waiting));
  }
  batch->shape.rows = static_cast<uint32_t>(batch->rows.size());
}

bool Batcher::IsMoved(const Batch& batch) {
  return batch.shape.memory != devices::kHostMemory && batch.shape.memory != batch.device->description().memory;
}

Batcher::Rejects Batcher::TakeCopies(Batch* batch) {
  const bool moves = IsMoved(*batch);
  if (!moves && batch->checked.empty()) return {};
  Rejects rejects;
  std::vector<WaitingRow> rows;
  std::vector<uint32_t> checked;
  auto next_checked = batch->checked.begin();
  for (WaitingRow& waiting : batch->rows) {
    const bool is_checked = next_checked != batch->checked.end() && *next_checked == &waiting - batch->rows.data();
    if (is_checked) ++next_checked;
    // What the device and the reference read must be the same bytes.
    if (moves || (is_checked && waiting.row.row.may_change)) {
      if (absl::Status status = TakeCopy(&waiting); !status.ok()) {
        rejects.push_back(
            {std::move(waiting.step), waiting.row.index,
             Refusal{Reason::kDeviceFailed, "", "", std::string(status.message()), absl::Milliseconds(100)}});
        continue;
      }
    }
    if (is_checked) checked.push_back(static_cast<uint32_t>(rows.size()));
    rows.push_back(std::move(waiting));
  }
  batch->rows = std::move(rows);
  batch->checked = std::move(checked);
  return rejects;
}

void Batcher::Start(std::unique_ptr<Batch> batch) {
  if (!IsMoved(*batch)) return Run(std::move(batch));
  // The driver of another device reads the rows, and this thread serves streams or a device.
  RunAside([this, batch = std::move(batch)]() mutable { Run(std::move(batch)); });
}

void Batcher::Run(std::unique_ptr<Batch> batch) {
  Rejects rejects = TakeCopies(batch.get());
  if (batch->rows.empty()) {
    {
      absl::MutexLock lock(&mutex_);
      router_.Finished(batch->device, batch->shape, false, clock_.Now());
    }
    Dispatch();
    return Deliver(std::move(rejects));  // last: without a row that waits for its answer the batcher may end
  }
  Deliver(std::move(rejects));
  // The batch keeps its rows: they may have to be checked, or run again.
  std::vector<devices::DeviceRow> rows;
  rows.reserve(batch->rows.size());
  for (const WaitingRow& waiting : batch->rows) rows.push_back(waiting.row.row);
  devices::Device* device = batch->device;
  observer_.BatchStarted(device->description().name, static_cast<uint32_t>(rows.size()), batch->reason);
  device->Submit(std::move(rows), [this, batch = std::move(batch)](devices::BatchResult result) mutable {
    Finish(std::move(batch), std::move(result));
  });
}

void Batcher::Finish(std::unique_ptr<Batch> batch, devices::BatchResult result) {
  SORTITION_CHECK(!result.status.ok() || result.answers.size() == batch->rows.size());
  // Not the shape's rows: some may have left the batch before it started.
  observer_.BatchDone(batch->device->description().name, static_cast<uint32_t>(batch->rows.size()), batch->queue_wait,
                      absl::Nanoseconds(result.kernel_nanoseconds));
  if (!result.status.ok() || batch->checked.empty()) {
    absl::Status status = result.status;
    return Settle(std::move(batch), std::move(result), std::move(status));
  }
  absl::AnyInvocable<void()> check = [this, batch = std::move(batch), result = std::move(result)]() mutable {
    uint32_t wrong = 0;
    for (const uint32_t row : batch->checked) wrong += !IsRight(batch->rows[row].row.row, result.answers[row]);
    observer_.RowsRechecked(batch->device->description().name, uint32_t(batch->checked.size()) - wrong, wrong);
    absl::Status verdict;
    if (wrong != 0) verdict = absl::DataLossError(absl::StrCat("wrong answers to ", wrong, " live rows"));
    Settle(std::move(batch), std::move(result), std::move(verdict));
  };
  RunAside(std::move(check));
}

void Batcher::RunAside(absl::AnyInvocable<void()> task) {
  if (options_.run_aside) {
    options_.run_aside(std::move(task));
  } else {
    task();
  }
}

void Batcher::Settle(std::unique_ptr<Batch> batch, devices::BatchResult result, absl::Status verdict) {
  if (!verdict.ok()) observer_.BatchFailed(batch->device->description().name);
  DeviceEvent event;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = clock_.Now();
    const bool serves = router_.health(batch->device).serves();
    // What a held device has begun before is as good as ever.
    const bool is_believed = serves || router_.health(batch->device).held();
    router_.Finished(batch->device, batch->shape, verdict.ok(), now);
    if (!verdict.ok() && serves && options_.self_test != nullptr) {
      absl::IsResourceExhausted(verdict) ? Rest(batch->device, batch->shape.needs(), verdict, now, &event)
                                         : Quarantine(batch->device, verdict, now, &event);
    }
    // Of a device that was found out meanwhile nothing is believed.
    if (verdict.ok() && !is_believed) verdict = absl::UnavailableError(router_.health(batch->device).reason());
    if (verdict.ok() && lottery_.share() > 0 && lottery_.share() < 1) NoteTouched(*batch);
  }
  Tell(event);
  if (verdict.ok()) return Answer(std::move(batch), std::move(result));
  RunAgain(std::move(batch), verdict);
}

void Batcher::Answer(std::unique_ptr<Batch> batch, devices::BatchResult result) {
  // The device goes on with the next batch while this one's answers are written.
  Dispatch();
  const uint32_t rows = static_cast<uint32_t>(batch->rows.size());
  Deliveries deliveries;
  for (uint32_t i = 0; i < rows; ++i) {
    deliveries.Add(std::move(batch->rows[i].step), {batch->rows[i].row.index, std::move(result.answers[i])});
  }
  deliveries.Send();
  absl::MutexLock lock(&mutex_);
  undelivered_rows_ -= rows;
}

void Batcher::RunAgain(std::unique_ptr<Batch> batch, const absl::Status& why) {
  const std::string& device = batch->device->description().name;
  Rejects rejects;
  uint32_t again = 0;
  {
    absl::MutexLock lock(&mutex_);
    for (auto waiting = batch->rows.rbegin(); waiting != batch->rows.rend(); ++waiting) {
      if (++waiting->attempts >= kMostAttempts || !router_.OtherCanServe(batch->device, NeedsOf(waiting->row.row))) {
        rejects.push_back(
            {std::move(waiting->step), waiting->row.index,
             Refusal{Reason::kDeviceFailed, "", "", std::string(why.message()), absl::Milliseconds(100)}});
        continue;
      }
      ++waiting->step->waiting_rows_;
      queue_.Add(std::move(*waiting));
      ++again;
    }
  }
  if (again != 0) observer_.RowsRerun(device, again);
  Dispatch();
  Deliver(std::move(rejects));
}

void Batcher::NoteTouched(const Batch& batch) {
  Touched& touched = touched_[batch.device];
  touched.rows += batch.rows.size() - batch.checked.size();
  for (const WaitingRow& waiting : batch.rows) {
    if (touched.sequences.size() == DeviceEvent::kMostTouched) return;
    touched.sequences.insert(waiting.row.sequence);
  }
}

void Batcher::Quarantine(const devices::Device* device, const absl::Status& why, absl::Time now, DeviceEvent* event) {
  DeviceHealth& health = router_.health(device);
  health.Quarantine(std::string(why.message()), now, absl::IsResourceExhausted(why));
  *event = {device->description().name, health.state(), health.reason(), absl::IsDataLoss(why), 0, {}};
  if (!event->gave_wrong_answer) return;
  Touched& touched = touched_[device];
  event->unchecked_rows = touched.rows;
  event->touched.assign(touched.sequences.begin(), touched.sequences.end());
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
    router_.EndRests(now);
    queue_.EraseIf([&](WaitingRow& waiting) {
      std::optional<Refusal> refusal = WhyNot(*waiting.step, now);
      if (!refusal) return false;
      --waiting.step->waiting_rows_;
      rejects.push_back({std::move(waiting.step), waiting.row.index, std::move(*refusal)});
      return true;
    });
  }
  Deliver(std::move(rejects));
  StartSelfTests();
  Dispatch();
}

void Batcher::Tell(const DeviceEvent& event) {
  if (options_.event_log != nullptr && !event.device.empty()) options_.event_log->DeviceChanged(event);
}

void Batcher::StartSelfTests() {
  if (options_.self_test == nullptr) return;
  std::vector<devices::Device*> due;
  {
    absl::MutexLock lock(&mutex_);
    due = router_.DueForSelfTest(clock_.Now());
    for (const devices::Device* device : due) router_.health(device).SelfTestStarted();
    self_tests_ += static_cast<uint32_t>(due.size());
  }
  for (devices::Device* device : due) {
    options_.self_test->Start(
        device, [this, device](const devices::SelfTest::Verdict& verdict) { EndSelfTest(device, verdict); });
  }
}

void Batcher::EndSelfTest(devices::Device* device, const devices::SelfTest::Verdict& verdict) {
  DeviceEvent event;
  {
    absl::MutexLock lock(&mutex_);
    TakeVerdict(device, verdict, clock_.Now(), &event);
  }
  Tell(event);
  Dispatch();
  absl::MutexLock lock(&mutex_);
  --self_tests_;
}

void Batcher::TakeVerdict(const devices::Device* device, const devices::SelfTest::Verdict& verdict, absl::Time now,
                          DeviceEvent* event) {
  // It was found out, or taken out of service, while it proved itself.
  if (router_.health(device).state() == DeviceState::kQuarantined) return;
  touched_.erase(device);
  if (!verdict.status.ok()) return Quarantine(device, verdict.status, now, event);
  for (const devices::SelfTest::Timing& timing : verdict.timings) {
    const bool moves = device->description().memory != devices::kHostMemory;
    router_.costs(device).Observe({timing.rows, timing.bytes, moves}, timing.time, now);
  }
  router_.costs(device).MakePrior();
  DeviceHealth& health = router_.health(device);
  health.Passed(absl::StrCat("passed ", verdict.rows, " golden rows"), now);
  *event = {device->description().name, health.state(), health.reason(), false, 0, {}};
}

void Batcher::SetSelfTested(const devices::Device* device, const devices::SelfTest::Verdict& verdict) {
  DeviceEvent event;
  {
    absl::MutexLock lock(&mutex_);
    TakeVerdict(device, verdict, clock_.Now(), &event);
  }
  Tell(event);
}

std::vector<DeviceStatus> Batcher::device_statuses() const {
  absl::MutexLock lock(&mutex_);
  return router_.Statuses();
}

uint32_t Batcher::queued_rows() const {
  absl::MutexLock lock(&mutex_);
  return queue_.rows();
}

double Batcher::queue_seconds() const {
  absl::MutexLock lock(&mutex_);
  const absl::Time now = clock_.Now();
  double seconds = 0;
  for (const Router::Batch& open : queue_.OpenBatches()) {
    if (router_.CanServe(open.needs())) seconds += router_.SecondsToDrain(open, now);
  }
  return seconds;
}

}  // namespace sortition::service
