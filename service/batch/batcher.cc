// The queue of rows, and the life of a batch.
#include "service/batch/batcher.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "kernels/check.h"
#include "service/batch/admission.h"
#include "service/wire/parameter_table.h"

namespace sortition::service {

// A closed batch: rows that were taken from the queue, and the device that samples them.
struct Batcher::Batch {
  devices::Device* device = nullptr;
  RouteReason reason = RouteReason::kFastest;
  Router::BatchSummary shape;
  std::vector<WaitingRow> rows;
  std::vector<uint32_t> checked;                     // rows that are compared with the reference
  absl::Duration here = absl::ZeroDuration();        // time that the submitter takes to run it
  bool is_sooner_here = false;                       // that is less than a hand-over and the device's threads take
  absl::Duration queue_wait = absl::ZeroDuration();  // wait of its oldest row
  absl::Time started;                                // the device got it
  absl::Time ended;                                  // the device had finished it
};

namespace {

// Returns the longest batch that the submitter runs itself.
absl::Duration LongestFor(Submitter submitter) {
  switch (submitter) {
    case Submitter::kBusy:
      break;
    case Submitter::kFree:
      return Batcher::kLongestHere;
    case Submitter::kOwned:
      return Batcher::kLongestOwned;
  }
  return -absl::InfiniteDuration();
}

// Groups outputs by step, so that each step is called once.
class OutputsByStep {
 public:
  // `queued`: time at which the row joined the queue. `rows`: upper bound for the further rows of the step.
  void Add(const std::shared_ptr<PendingStep>& step, absl::Time queued, size_t rows, const QueuedOutput& output) {
    // Rows of one step mostly follow each other, so the last step is tried first.
    if (steps_.empty()) AddStep(step, queued, rows);
    if (steps_[last_].step != step) {
      if (places_.empty()) places_.emplace(steps_[0].step.get(), 0);
      last_ = places_.try_emplace(step.get(), steps_.size()).first->second;
      if (last_ == steps_.size()) AddStep(step, queued, rows);
    }
    steps_[last_].outputs.push_back(output);
  }
  // Calls `each` with each step, the time at which its first row joined the queue, and its outputs.
  template <typename Each>
  void ForEach(Each each) {
    for (const auto& [step, queued, outputs] : steps_) each(*step, queued, outputs);
    steps_.clear();
  }

 private:
  struct StepOutputs {
    std::shared_ptr<PendingStep> step;
    absl::Time queued;
    std::vector<QueuedOutput> outputs;
  };
  void AddStep(const std::shared_ptr<PendingStep>& step, absl::Time queued, size_t rows) {
    steps_.push_back({step, queued, {}});
    steps_.back().outputs.reserve(rows);
  }

  std::vector<StepOutputs> steps_;
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
      queue_({devices.begin(), devices.end()}),
      keeper_(devices, clock, observer, options_.devices, [this] { Dispatch(); }) {}

Batcher::~Batcher() {
  const auto done = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return undelivered_rows_ == 0; };
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&done));
}

std::optional<Refusal> Batcher::Submit(std::shared_ptr<PendingStep> step, std::vector<QueuedRow> rows,
                                       Submitter submitter) {
  std::unique_ptr<Batch> batch;
  Rejects rejects;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = clock_.Now();
    if (auto refusal = WhyNotAdmitted(limits_, queue_, keeper_, *step, rows, now)) return refusal;
    batch = AddRows(step, std::move(rows), step->arrived, now, &rejects);
  }
  Deliver(std::move(rejects));
  if (batch != nullptr) Start(std::move(batch), submitter);
  Dispatch(submitter);
  return std::nullopt;
}

void Batcher::Continue(std::shared_ptr<PendingStep> step, std::vector<QueuedRow> rows) {
  std::unique_ptr<Batch> batch;
  Rejects rejects;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = clock_.Now();
    batch = AddRows(step, std::move(rows), now, now, &rejects);
  }
  Deliver(std::move(rejects));
  if (batch != nullptr) Start(std::move(batch), Submitter::kBusy);
  Dispatch();
}

std::unique_ptr<Batcher::Batch> Batcher::AddRows(const std::shared_ptr<PendingStep>& step, std::vector<QueuedRow> rows,
                                                 absl::Time since, absl::Time now, Rejects* rejects) {
  undelivered_rows_ += static_cast<uint32_t>(rows.size());
  step->waiting_rows_ += static_cast<uint32_t>(rows.size());
  const auto its = std::make_shared<Submission>(Submission{step, std::move(rows), step->owner, step->priority, since});
  auto next = its->rows.begin();
  const auto take = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> std::optional<WaitingRow> {
    if (next == its->rows.end()) return std::nullopt;
    QueuedRow& row = *next++;
    return WaitingRow{its, &row, NeedsOf(row.row), next_number_++};
  };
  std::unique_ptr<Batch> batch;
  if (const auto alike = queue_.rows() == 0 ? WholeIfAlike(its->rows) : std::nullopt) {
    const Router::Choice choice = keeper_.Choose(*alike, now);
    if (choice.device != nullptr) batch = FillBatch(choice, *alike, now, take, rejects);
  }
  while (auto left = take()) queue_.Add(*std::move(left));
  return batch;
}

void Batcher::Dispatch(Submitter submitter) {
  for (;;) {
    std::unique_ptr<Batch> batch;
    Rejects rejects;
    {
      absl::MutexLock lock(&mutex_);
      batch = Close(clock_.Now(), &rejects);
    }
    Deliver(std::move(rejects));
    if (batch == nullptr) return;
    Start(std::move(batch), submitter);
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
  // An open batch that has to wait for its device does not hold up the others.
  for (const Router::BatchSummary& open : queue_.OpenBatches()) {
    if (!keeper_.CanServe(open.needs())) {
      RefuseUnservable(rejects);
      continue;
    }
    const Router::Choice choice = keeper_.Choose(open, now);
    if (choice.device == nullptr) continue;
    const auto take = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return queue_.TakeFor(choice.device->description(), open.memory);
    };
    if (auto batch = FillBatch(choice, open, now, take, rejects)) return batch;
  }
  return nullptr;
}

void Batcher::RefuseUnservable(Rejects* rejects) {
  queue_.EraseIf([&](WaitingRow& waiting) {
    if (keeper_.CanServe(waiting.needs)) return false;
    --waiting.step()->waiting_rows_;
    const kernels::Features missing = keeper_.Lacking(waiting.needs.features);
    rejects->push_back({waiting.step(), waiting.row->index,
                        missing != kernels::kNoFeatures
                            ? Refusal{Reason::kNotImplemented, "", "", DevicesLack(missing)}
                            : Refusal{Reason::kDeviceFailed, "", "", "no device serves that is able to take the row",
                                      absl::Milliseconds(100)}});
    return true;
  });
}

std::unique_ptr<Batcher::Batch> Batcher::FillBatch(const Router::Choice& choice, const Router::BatchSummary& open,
                                                   absl::Time now, Take take, Rejects* rejects) {
  const devices::DeviceDescription& description = choice.device->description();
  auto batch = std::make_unique<Batch>();
  batch->device = choice.device;
  batch->reason = choice.reason;
  batch->shape.memory = open.memory;
  batch->rows.reserve(std::min(open.rows, description.max_batch_rows));
  const bool moves = batch->shape.memory != description.memory;
  const Costs costs = keeper_.CostsAt(batch->device, now);
  const double most = costs.launch + std::max(absl::ToDoubleSeconds(kLongestBatch), 9 * costs.launch);
  while (batch->rows.size() < description.max_batch_rows &&
         costs.Seconds({static_cast<uint32_t>(batch->rows.size()), batch->shape.bytes, moves}) < most) {
    std::optional<WaitingRow> waiting = take();
    if (!waiting) break;
    --waiting->step()->waiting_rows_;
    if (std::optional<Refusal> refusal = WhyNot(*waiting->step(), now)) {
      rejects->push_back({waiting->step(), waiting->row->index, std::move(*refusal)});
      continue;
    }
    batch->shape.vocabulary = std::max(batch->shape.vocabulary, waiting->needs.vocabulary);
    batch->shape.features |= waiting->needs.features;
    batch->shape.bytes += BytesOf(waiting->row->row);
    batch->queue_wait = std::max(batch->queue_wait, now - waiting->its->since);
    if (keeper_.DrawRecheck()) batch->checked.push_back(static_cast<uint32_t>(batch->rows.size()));
    batch->rows.push_back(*std::move(waiting));
  }
  if (batch->rows.empty()) return nullptr;  // all rows were refused
  batch->shape.rows = static_cast<uint32_t>(batch->rows.size());
  const double alone = costs.Seconds({batch->shape.rows, batch->shape.bytes, moves}) - costs.launch;
  const double together = alone / description.batches_in_flight;  // over that number of threads
  batch->here = absl::Seconds(alone);
  batch->is_sooner_here = alone <= together + absl::ToDoubleSeconds(kHandOver);
  keeper_.Started(batch->device, batch->shape, now);
  return batch;
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
    // The device and the reference must read the same bytes.
    if (moves || (is_checked && waiting.row->row.may_change)) {
      if (absl::Status status = TakeCopy(&waiting); !status.ok()) {
        rejects.push_back(
            {waiting.step(), waiting.row->index,
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

void Batcher::Start(std::unique_ptr<Batch> batch, Submitter submitter) {
  if (!IsMoved(*batch)) return Run(std::move(batch), submitter);
  // The copy goes through the driver of another device and takes long; this thread serves a stream or a device.
  RunAside([this, batch = std::move(batch)]() mutable { Run(std::move(batch), Submitter::kBusy); });
}

void Batcher::Run(std::unique_ptr<Batch> batch, Submitter submitter) {
  Rejects rejects = TakeCopies(batch.get());
  if (batch->rows.empty()) {
    keeper_.Dropped(batch->device, batch->shape);
    Dispatch();
    return Deliver(std::move(rejects));  // last: when all rows are delivered the batcher may be destroyed
  }
  Deliver(std::move(rejects));
  // The batch keeps its rows: they may have to be checked, or run again.
  std::vector<const devices::DeviceRow*> rows;
  rows.reserve(batch->rows.size());
  for (const WaitingRow& waiting : batch->rows) rows.push_back(&waiting.row->row);
  devices::Device* device = batch->device;
  observer_.BatchStarted(device->description().name, static_cast<uint32_t>(rows.size()), batch->reason);
  batch->started = clock_.Now();
  const bool here = batch->is_sooner_here && batch->here <= LongestFor(submitter);
  auto done = [this, batch = std::move(batch)](devices::BatchOutput output) mutable {
    Finish(std::move(batch), std::move(output));
  };
  here ? device->RunHere(rows, std::move(done)) : device->Submit(devices::CopyRows(rows), std::move(done));
}

void Batcher::Finish(std::unique_ptr<Batch> batch, devices::BatchOutput output) {
  SORTITION_CHECK(!output.status.ok() || output.outputs.size() == batch->rows.size());
  batch->ended = clock_.Now();
  // Counts the batch's rows, not the shape's: some may have left the batch before it started.
  observer_.BatchDone(batch->device->description().name, static_cast<uint32_t>(batch->rows.size()), batch->queue_wait,
                      absl::Nanoseconds(output.kernel_nanoseconds));
  if (!output.status.ok() || batch->checked.empty()) {
    absl::Status status = output.status;
    return Settle(std::move(batch), std::move(output), std::move(status));
  }
  RunAside([this, batch = std::move(batch), output = std::move(output)]() mutable {
    std::vector<DeviceKeeper::CheckedRow> checked;
    for (const uint32_t row : batch->checked) checked.push_back({&batch->rows[row].row->row, &output.outputs[row]});
    absl::Status status = keeper_.Recheck(batch->device, checked);
    Settle(std::move(batch), std::move(output), std::move(status));
  });
}

void Batcher::RunAside(absl::AnyInvocable<void()> task) {
  if (options_.run_aside) {
    options_.run_aside(std::move(task));
  } else {
    task();
  }
}

void Batcher::Settle(std::unique_ptr<Batch> batch, devices::BatchOutput output, absl::Status status) {
  DeviceKeeper::EndedBatch ended = {batch->device, batch->shape, batch->rows.size() - batch->checked.size(), {}};
  if (keeper_.RemembersSequences()) {
    for (const WaitingRow& waiting : batch->rows) ended.sequences.emplace_back(waiting.row->sequence);
  }
  status = keeper_.Ended(ended, std::move(status));
  if (status.ok()) return Answer(std::move(batch), std::move(output));
  RunAgain(std::move(batch), status);
}

void Batcher::Answer(std::unique_ptr<Batch> batch, devices::BatchOutput output) {
  // Gives the device its next batch before this one's outputs are delivered.
  Dispatch();
  const uint32_t rows = static_cast<uint32_t>(batch->rows.size());
  OutputsByStep outputs;
  for (uint32_t i = 0; i < rows; ++i) {
    const WaitingRow& waiting = batch->rows[i];
    outputs.Add(waiting.step(), waiting.its->since, waiting.its->rows.size(), {waiting.row->index, &output.outputs[i]});
  }
  batch->rows.clear();  // after the last delivery the batcher may be destroyed, and the steps' data
  outputs.ForEach([&](PendingStep& step, absl::Time queued, std::span<const QueuedOutput> its) {
    step.runs_.Add(
        {batch->device->description().name, static_cast<uint32_t>(its.size()), queued, batch->started, batch->ended});
    step.Deliver(its);
  });
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
      if (++waiting->attempts >= kMostAttempts || !keeper_.OtherCanServe(batch->device, waiting->needs)) {
        rejects.push_back(
            {waiting->step(), waiting->row->index,
             Refusal{Reason::kDeviceFailed, "", "", std::string(why.message()), absl::Milliseconds(100)}});
        continue;
      }
      ++waiting->step()->waiting_rows_;
      queue_.Add(std::move(*waiting));
      ++again;
    }
  }
  batch->rows.clear();
  if (again != 0) observer_.RowsRerun(device, again);
  Dispatch();
  Deliver(std::move(rejects));
}

void Batcher::Deliver(Rejects rejects) {
  if (rejects.empty()) return;
  const uint32_t rows = static_cast<uint32_t>(rejects.size());
  OutputsByStep outputs;
  for (Reject& reject : rejects) {
    outputs.Add(std::exchange(reject.step, nullptr), absl::InfinitePast(), 1, {reject.index, nullptr, &reject.refusal});
  }
  outputs.ForEach([](PendingStep& step, absl::Time, std::span<const QueuedOutput> its) { step.Deliver(its); });
  absl::MutexLock lock(&mutex_);
  undelivered_rows_ -= rows;
}

void Batcher::Sweep() {
  Rejects rejects;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = clock_.Now();
    keeper_.EndBackoffs(now);
    queue_.EraseIf([&](WaitingRow& waiting) {
      std::optional<Refusal> refusal = WhyNot(*waiting.step(), now);
      if (!refusal) return false;
      --waiting.step()->waiting_rows_;
      rejects.push_back({waiting.step(), waiting.row->index, std::move(*refusal)});
      return true;
    });
  }
  Deliver(std::move(rejects));
  keeper_.StartSelfTests();
  Dispatch();
}

uint32_t Batcher::queued_rows() const {
  absl::MutexLock lock(&mutex_);
  return queue_.rows();
}

double Batcher::queue_seconds() const {
  absl::MutexLock lock(&mutex_);
  const absl::Time now = clock_.Now();
  double seconds = 0;
  for (const Router::BatchSummary& open : queue_.OpenBatches()) {
    if (keeper_.CanServe(open.needs())) seconds += keeper_.SecondsToDrain(open, now);
  }
  return seconds;
}

double Batcher::queue_share() const {
  absl::MutexLock lock(&mutex_);
  return QueueShare(limits_, queue_, keeper_, clock_.Now());
}

}  // namespace sortition::service
