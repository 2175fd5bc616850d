// Gathers rows of all streams into batches for the devices, work-conserving: a device with room never waits for a
// fuller batch.
//
// A batch is open while every device is busy: rows that arrive join it. When a device has room the batch closes,
// highest priority first and oldest first within a priority, and goes to the device the router chooses.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "devices/device.h"
#include "service/clock.h"
#include "service/limits.h"
#include "service/observer.h"
#include "service/refusal.h"
#include "service/route/router.h"

namespace sortition::service {

struct RowOutcome {
  uint32_t index = 0;  // as given in QueuedRow
  std::variant<kernels::RowAnswer, Refusal> result;
};

// A step some of whose rows wait or run. Implemented by the stream.
class PendingStep {
 public:
  virtual ~PendingStep() = default;
  // Called with every row exactly once, possibly in several calls from several threads at once. Never called under a
  // lock of the batcher's. Must not block for long.
  virtual void Deliver(std::vector<RowOutcome> outcomes) = 0;

  // Rows that have not started yet are answered with STEP_CANCELLED instead of run. Thread-safe.
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

  absl::Time deadline = absl::InfiniteFuture();  // rows not started by then get DEADLINE_PASSED
  int32_t priority = 0;
  absl::Time arrived;

 private:
  std::atomic<bool> cancelled_ = false;
};

struct QueuedRow {
  uint32_t index = 0;
  devices::DeviceRow row;  // all it refers to stays alive as long as its step does
};

// Thread-safe; never blocks for long.
class Batcher {
 public:
  // `devices` are not owned and outlive the batcher, as do `clock` and `observer`.
  Batcher(const Limits& limits, std::vector<devices::Device*> devices, const Clock* clock, Observer* observer);
  // Waits until every row has been delivered.
  ~Batcher();

  // Takes all rows of a step, or none: OVERLOADED with retry advice if they do not fit the queue. Rows of a step that
  // was taken are delivered through `step`, maybe before Submit returns.
  std::optional<Refusal> Submit(std::shared_ptr<PendingStep> step, std::vector<QueuedRow> rows);

  // Answers the queued rows of steps that were cancelled or have passed their deadline, without waiting for a device to
  // have room.
  void Sweep();

  uint32_t queued_rows() const;

 private:
  struct Waiting {
    std::shared_ptr<PendingStep> step;
    QueuedRow row;
  };
  struct Batch;
  struct Reject {
    std::shared_ptr<PendingStep> step;
    uint32_t index;
    Refusal refusal;
  };
  using Rejects = std::vector<Reject>;

  void Dispatch();
  std::unique_ptr<Batch> Close(absl::Time now, Rejects* rejects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<Refusal> WhyNot(const PendingStep& step, absl::Time now) const;
  void Start(std::unique_ptr<Batch> batch);
  void Finish(std::unique_ptr<Batch> batch, devices::BatchResult result);
  void Deliver(Rejects rejects);

  const Limits limits_;
  const Clock& clock_;
  Observer& observer_;
  mutable absl::Mutex mutex_;
  Router router_ ABSL_GUARDED_BY(mutex_);
  std::map<int32_t, std::deque<Waiting>, std::greater<>> queue_ ABSL_GUARDED_BY(mutex_);  // by priority, highest first
  uint32_t queued_rows_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t undelivered_rows_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace sortition::service
