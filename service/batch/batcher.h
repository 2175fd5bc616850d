// Gathers rows of all streams into batches for the devices, work-conserving: a device that the router chooses never
// waits for a fuller batch.
//
// Batches are open while no device is to have them: rows that arrive join them (row_queue.h). When the router chooses a
// device for one it closes, highest priority first and with a share for each client within a priority. Where its device
// fails, or gives a wrong answer, the device leaves the pool until it has proved itself again, and the batch's rows
// take their old places in the queue, for another device. One that had no memory for a batch rests for a second
// instead.
//
// What would wait for too long is refused at once (admission.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "devices/device.h"
#include "devices/self_test/self_test.h"
#include "service/batch/row_queue.h"
#include "service/clock.h"
#include "service/event_log.h"
#include "service/limits.h"
#include "service/observer.h"
#include "service/refusal.h"
#include "service/route/recheck.h"
#include "service/route/router.h"

namespace sortition::service {

struct RowOutcome {
  uint32_t index = 0;  // as given in QueuedRow
  std::variant<kernels::RowOutput, Refusal> result;
};

// A step some of whose rows wait or run. Implemented by the stream.
class PendingStep {
 public:
  virtual ~PendingStep() = default;
  // Called with every row exactly once, possibly in several calls from several threads at once. Never called under a
  // lock of the batcher's. Must not block for long; may call Batcher::Continue.
  virtual void Deliver(std::vector<RowOutcome> outcomes) = 0;

  // Rows that have not started yet are answered with STEP_CANCELLED instead of run. Thread-safe.
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

  // Rows that no device has been given yet. Kept by the batcher; thread-safe.
  uint32_t waiting_rows() const { return waiting_rows_.load(std::memory_order_relaxed); }

  absl::Time deadline = absl::InfiniteFuture();  // rows not started by then get DEADLINE_PASSED
  int32_t priority = 0;
  Client client;
  absl::Time arrived;

 private:
  friend class Batcher;
  std::atomic<bool> cancelled_ = false;
  std::atomic<uint32_t> waiting_rows_ = 0;
};

struct BatcherOptions {
  RoutePolicy policy = {};
  double recheck_share = 0;  // of live rows that are compared with the reference
  uint64_t seed = 0;         // of choices at random; a secret where rows are re-checked
  // By which a device that failed comes back; not owned. Null: whatever a device does, it stays in the pool.
  const devices::SelfTest* self_test = nullptr;
  EventLog* event_log = nullptr;  // not owned, outlives the batcher; null: no log
  // Runs what takes long beside the devices' work: a comparison with the reference, the reading of a device's memory
  // for another one. Within the call where it is not set. Outlives the batcher.
  std::function<void(absl::AnyInvocable<void()>)> run_aside = nullptr;
};

// Thread-safe; never blocks for long.
class Batcher {
 public:
  // After so many devices have failed a row, it is answered with DEVICE_FAILED, as it is where no other device serves.
  static constexpr uint32_t kMostAttempts = 4;
  // What waits is not put into one batch beyond so much of a device's time, or nine times what a batch costs whatever
  // is in it: rows that come meanwhile, of other clients and of higher priority, wait no longer than that.
  static constexpr absl::Duration kLongestBatch = absl::Milliseconds(10);

  // `devices` are not owned and outlive the batcher, as do `clock` and `observer`. They serve from the start: the
  // caller has proved them, or quarantines them.
  Batcher(const Limits& limits, std::vector<devices::Device*> devices, const Clock* clock, Observer* observer,
          BatcherOptions options = {});
  // Waits until every row has been delivered and every self-test has ended.
  ~Batcher();

  // Takes all rows of a step, or none: OVERLOADED with retry advice if they do not fit the queue or would wait in it
  // for too long. Rows of a step that was taken are delivered through `step`, maybe before Submit returns.
  std::optional<Refusal> Submit(std::shared_ptr<PendingStep> step, std::vector<QueuedRow> rows);
  // Takes rows that could not be made before the one that is just being delivered was answered: at most one for each of
  // them, in whose place it comes, so that none is refused. Called by PendingStep::Deliver alone.
  void Continue(std::shared_ptr<PendingStep> step, std::vector<QueuedRow> rows);

  // Answers the queued rows of steps that were cancelled or have passed their deadline, without waiting for a device to
  // have room; starts the self-tests that are due, and batches that waited for a device which is late. Called now and
  // then.
  void Sweep();

  // Before the first row: what a self-test that ran elsewhere said of a device.
  void SetSelfTested(const devices::Device* device, const devices::SelfTest::Verdict& verdict);

  // Has a device prove itself now: one that serves goes on meanwhile and leaves if it fails, another one joins if it
  // does not. `done` is told the verdict, on any thread. NOT_FOUND if there is no such device, FAILED_PRECONDITION
  // while a self-test of it runs or where devices are never out of service; then `done` is not called.
  absl::Status Prove(std::string_view device, std::function<void(absl::Status)> done);

  // Takes a device out of service until it is asked to prove itself; what it has already is answered. NOT_FOUND if
  // there is no such device, FAILED_PRECONDITION if no other device serves or where devices are never out of service.
  absl::Status Hold(std::string_view device, const std::string& why);

  uint32_t queued_rows() const;
  // To work off the rows that wait, by measured costs, as if all kinds of rows ran one after the other.
  double queue_seconds() const;
  std::vector<DeviceStatus> device_statuses() const;

 private:
  struct Batch;
  struct Reject {
    std::shared_ptr<PendingStep> step;
    uint32_t index;
    Refusal refusal;
  };
  using Rejects = std::vector<Reject>;

  void AddRows(const std::shared_ptr<PendingStep>& step, std::vector<QueuedRow> rows, absl::Time since)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Dispatch();
  std::unique_ptr<Batch> Close(absl::Time now, Rejects* rejects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<Refusal> WhyNot(const PendingStep& step, absl::Time now) const;
  void FillBatch(Batch* batch, absl::Time now, Rejects* rejects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Refuses the queued rows that no device will take.
  void RefuseUnservable(Rejects* rejects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Start(std::unique_ptr<Batch> batch);
  void Run(std::unique_ptr<Batch> batch);
  void RunAside(absl::AnyInvocable<void()> task);
  // Its rows lie in the memory of another device than the one that is to sample them.
  static bool IsMoved(const Batch& batch);
  // Rows of the batch whose bytes have to lie still, or elsewhere, are copied; a row whose memory cannot be read leaves
  // the batch.
  static Rejects TakeCopies(Batch* batch);
  // The device is done with the batch; now its rows may have to be checked, ...
  void Finish(std::unique_ptr<Batch> batch, devices::BatchResult result);
  // ... and then they are answered, or run again.
  void Settle(std::unique_ptr<Batch> batch, devices::BatchResult result, absl::Status verdict);
  void Answer(std::unique_ptr<Batch> batch, devices::BatchResult result);
  void RunAgain(std::unique_ptr<Batch> batch, const absl::Status& why);
  void NoteTouched(const Batch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The device had no memory for a batch that needs this.
  void Rest(const devices::Device* device, const Router::Needs& needs, const absl::Status& why, absl::Time now,
            DeviceEvent* event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Quarantine(const devices::Device* device, const absl::Status& why, absl::Time now, DeviceEvent* event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Tell(const DeviceEvent& event) ABSL_LOCKS_EXCLUDED(mutex_);
  void StartSelfTests();
  absl::StatusOr<devices::Device*> FindDevice(std::string_view name) const;
  void EndSelfTest(devices::Device* device, const devices::SelfTest::Verdict& verdict);
  void TakeVerdict(const devices::Device* device, const devices::SelfTest::Verdict& verdict, absl::Time now,
                   DeviceEvent* event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Deliver(Rejects rejects);

  // Whose answers left unchecked since a device's last self-test.
  struct Touched {
    uint64_t rows = 0;
    absl::flat_hash_set<std::string> sequences;
  };

  const Limits limits_;
  const BatcherOptions options_;
  const Clock& clock_;
  Observer& observer_;
  mutable absl::Mutex mutex_;
  Router router_ ABSL_GUARDED_BY(mutex_);
  RowQueue queue_ ABSL_GUARDED_BY(mutex_);
  uint32_t undelivered_rows_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t next_number_ ABSL_GUARDED_BY(mutex_) = 0;
  const std::vector<devices::Device*> devices_;
  uint32_t self_tests_ ABSL_GUARDED_BY(mutex_) = 0;                            // that run
  absl::flat_hash_set<const devices::Device*> asked_ ABSL_GUARDED_BY(mutex_);  // to prove themselves, and do so now
  RecheckLottery lottery_ ABSL_GUARDED_BY(mutex_);
  std::map<const devices::Device*, Touched> touched_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sortition::service
