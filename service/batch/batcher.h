// Gathers rows of all streams into batches and gives them to devices, work-conserving: a device that the router chooses
// never waits for a fuller batch.
//
// An open batch is a set of waiting rows that the same devices can take; rows that arrive join it (row_queue.h). It
// closes when the router chooses a device for it: rows of the highest priority go first, and within a priority each
// tenant gets its share. Rows that find none waiting and a device with room are a batch at once. A thread that has
// nothing else to do runs a short batch for the device. If the device fails, or gives a wrong output, the rows return
// to their old places in the queue, for another device. The device keeper decides which devices serve
// (service/route/device_keeper.h).
//
// A step whose rows would wait for too long is refused at once (admission.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "devices/device.h"
#include "service/batch/row_queue.h"
#include "service/batch_runs.h"
#include "service/clock.h"
#include "service/limits.h"
#include "service/observer.h"
#include "service/refusal.h"
#include "service/route/device_keeper.h"

namespace sortition::service {

// The kernels' output for one queued row, or the reason why no device was given it. Not owned; one of the two is null.
struct QueuedOutput {
  uint32_t index = 0;                    // as given in QueuedRow
  kernels::RowOutput* output = nullptr;  // may be moved from
  const Refusal* refusal = nullptr;
};

// A step with rows that wait or run. Implemented by the stream.
class PendingStep {
 public:
  virtual ~PendingStep() = default;
  // Takes outputs of the step's rows, which live until it returns. The batcher delivers every row exactly once,
  // possibly in several calls from several threads at once, and holds no lock meanwhile. Must not block for long; may
  // call Batcher::Continue.
  virtual void Deliver(std::span<const QueuedOutput> outputs) = 0;

  // Answers the rows that have not started with STEP_CANCELLED. Thread-safe.
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

  // Runs of its rows that have ended. The batcher adds each before it delivers the outputs.
  const BatchRuns& runs() const { return runs_; }

  // Number of rows that no device has been given yet. The batcher counts them; thread-safe.
  uint32_t waiting_rows() const { return waiting_rows_.load(std::memory_order_relaxed); }

  absl::Time deadline = absl::InfiniteFuture();  // rows not started by then get DEADLINE_PASSED
  int32_t priority = 0;
  QueueOwner owner;
  absl::Time arrived;

 private:
  friend class Batcher;
  std::atomic<bool> cancelled_ = false;
  std::atomic<uint32_t> waiting_rows_ = 0;
  BatchRuns runs_;
};

struct BatcherOptions {
  DeviceKeeperOptions devices = {};
  // Runs a task that takes long, such as a re-check or a read of a device's memory, on another thread. Outlives the
  // batcher. Null: the task runs within the call that needs it.
  std::function<void(absl::AnyInvocable<void()>)> run_aside = nullptr;
};

// The thread that submits a step, by its other work. A thread without other work runs a batch itself, if that is faster
// than a hand-over to a device's thread.
enum class Submitter {
  kBusy,
  kFree,   // nothing now, but it serves other streams, too: it runs a short batch
  kOwned,  // nothing now, and it serves one stream alone: it runs longer ones
};

// Thread-safe; never blocks for long.
class Batcher {
 public:
  // A row that this many devices have failed is answered with DEVICE_FAILED, as is one that no other device can take.
  static constexpr uint32_t kMostAttempts = 4;
  // A batch takes no more rows once it is expected to take this long, or nine times the fixed cost of a batch if that
  // is longer. Rows that arrive meanwhile, of other tenants or of higher priority, wait no longer than that.
  static constexpr absl::Duration kLongestBatch = absl::Milliseconds(10);
  // About the time that it takes to wake up a device's thread and to be woken up by it.
  static constexpr absl::Duration kHandOver = absl::Microseconds(50);
  // The longest batch that a free submitter runs itself. Messages of other streams wait for the same thread.
  static constexpr absl::Duration kLongestHere = absl::Microseconds(100);
  // The same for a thread of one stream, whose messages wait. In a longer batch a hand-over costs little.
  static constexpr absl::Duration kLongestOwned = absl::Milliseconds(1);

  // `devices`, `clock` and `observer` are not owned and outlive the batcher. All devices serve from the start: the
  // caller has run their self-tests, or reports a failed one with DeviceKeeper::SetSelfTested.
  Batcher(const Limits& limits, std::vector<devices::Device*> devices, const Clock* clock, Observer* observer,
          BatcherOptions options = {});
  // Waits until every row has been delivered and every self-test has ended.
  ~Batcher();

  // Takes all rows of a step, or none: OVERLOADED with retry advice if they do not fit the queue or would wait in it
  // for too long. Delivers the rows of a step that was taken to `step`, maybe before Submit returns.
  std::optional<Refusal> Submit(std::shared_ptr<PendingStep> step, std::vector<QueuedRow> rows,
                                Submitter submitter = Submitter::kBusy);
  // Takes rows that depend on the output that is being delivered: at most one for each row delivered, whose place it
  // takes, so none is refused. Called only by PendingStep::Deliver.
  void Continue(std::shared_ptr<PendingStep> step, std::vector<QueuedRow> rows);

  // Periodic work: refuses queued rows of steps that were cancelled or have passed their deadline, starts the
  // self-tests that are due, and starts batches that waited for a device which is late.
  void Sweep();

  // Health of the devices. A change of it starts the batches that have waited for it.
  DeviceKeeper& keeper() { return keeper_; }
  const DeviceKeeper& keeper() const { return keeper_; }

  uint32_t queued_rows() const;
  // Seconds that the waiting rows would take, by measured costs, if the open batches ran in turn.
  double queue_seconds() const;
  // The used share of the bounds that refuse steps (QueueShare in admission.h).
  double queue_share() const;

 private:
  struct Batch;
  struct Reject {
    std::shared_ptr<PendingStep> step;
    uint32_t index;
    Refusal refusal;
  };
  using Rejects = std::vector<Reject>;

  // Takes rows that have arrived. Where none wait and a device has room, they go past the queue: returns their batch.
  // Otherwise, and if some are left, they join the queue.
  std::unique_ptr<Batch> AddRows(const std::shared_ptr<PendingStep>& step, std::vector<QueuedRow> rows,
                                 absl::Time since, absl::Time now, Rejects* rejects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Dispatch(Submitter submitter = Submitter::kBusy) ABSL_LOCKS_EXCLUDED(mutex_);
  std::unique_ptr<Batch> Close(absl::Time now, Rejects* rejects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<Refusal> WhyNot(const PendingStep& step, absl::Time now) const;
  // Takes rows by `take` as long as the device of `choice` takes more into one batch. Returns null if it got none.
  using Take = absl::FunctionRef<std::optional<WaitingRow>()>;
  std::unique_ptr<Batch> FillBatch(const Router::Choice& choice, const Router::BatchSummary& open, absl::Time now,
                                   Take take, Rejects* rejects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Refuses the queued rows that no device can take.
  void RefuseUnservable(Rejects* rejects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Start(std::unique_ptr<Batch> batch, Submitter submitter);
  void Run(std::unique_ptr<Batch> batch, Submitter submitter);
  void RunAside(absl::AnyInvocable<void()> task);
  // True if the rows lie in the memory of another device than the one that is to sample them.
  static bool IsMoved(const Batch& batch);
  // Copies the rows that the device cannot read in place, and the rows that must not change before the re-check. Rows
  // whose memory cannot be read leave the batch.
  static Rejects TakeCopies(Batch* batch);
  // Takes the device's output and re-checks the rows that were drawn for it, ...
  void Finish(std::unique_ptr<Batch> batch, devices::BatchOutput output);
  // ... then delivers the rows, or runs them again if `status`, the device's or the re-check's, is an error.
  void Settle(std::unique_ptr<Batch> batch, devices::BatchOutput output, absl::Status status);
  void Answer(std::unique_ptr<Batch> batch, devices::BatchOutput output);
  void RunAgain(std::unique_ptr<Batch> batch, const absl::Status& why);
  void Deliver(Rejects rejects);

  const Limits limits_;
  const BatcherOptions options_;
  const Clock& clock_;
  Observer& observer_;
  mutable absl::Mutex mutex_;  // taken before the keeper's own lock
  RowQueue queue_ ABSL_GUARDED_BY(mutex_);
  uint32_t undelivered_rows_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t next_number_ ABSL_GUARDED_BY(mutex_) = 0;
  DeviceKeeper keeper_;  // destroyed first: a self-test that ends calls Dispatch
};

}  // namespace sortition::service
