// Keeps devices healthy: decides which of them serve, and finds those that fail or give wrong outputs.
//
// A device that fails a batch, or gives a wrong output for a live row, is quarantined until it passes a self-test. The
// pause before the self-test doubles with each failure (health.h). A device that had no memory for a batch backs off
// for a second instead, if another device can take the batch. An operator can ask for a self-test and can take a device
// out of service. A re-check samples a random share of the live rows again on the CPU (recheck.h).
//
// The keeper owns the router, so a device's health and the choice among devices change under one lock.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "devices/device.h"
#include "devices/self_test/self_test.h"
#include "service/clock.h"
#include "service/event_log.h"
#include "service/observer.h"
#include "service/route/recheck.h"
#include "service/route/router.h"

namespace sortition::service {

struct DeviceKeeperOptions {
  RoutePolicy policy = {};
  double recheck_share = 0;  // share of live rows that are compared with the reference, 0 to 1
  uint64_t seed = 0;         // seed for the choice of rows to re-check; secret
  // Brings a failed device back; not owned, outlives the keeper. Null: devices are never taken out of service.
  const devices::SelfTest* self_test = nullptr;
  EventLog* event_log = nullptr;  // not owned, outlives the keeper; null: no log
};

// Thread-safe; only Recheck takes long. Callers may hold their locks in all calls except RunSelfTest, Hold and
// StartSelfTests: these may call `changed`, and a device may call the keeper from within its Submit. The keeper calls
// devices, the event log and `changed` without its lock.
class DeviceKeeper {
 public:
  // `devices`, `clock` and `observer` are not owned and outlive the keeper. All devices serve from the start.
  // `changed` is called, on any thread, after a self-test or an operator may have changed which devices serve.
  DeviceKeeper(std::vector<devices::Device*> devices, const Clock* clock, Observer* observer,
               DeviceKeeperOptions options, std::function<void()> changed);
  // Waits until every self-test has ended and the `changed` after it has returned.
  ~DeviceKeeper();
  DeviceKeeper(const DeviceKeeper&) = delete;
  DeviceKeeper& operator=(const DeviceKeeper&) = delete;

  // The choice of a device; see Router's functions of the same names.
  Router::Choice Choose(const Router::BatchSummary& batch, absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  bool CanServe(const Router::Needs& needs) const ABSL_LOCKS_EXCLUDED(mutex_);
  bool OtherCanServe(const devices::Device* device, const Router::Needs& needs) const ABSL_LOCKS_EXCLUDED(mutex_);
  kernels::Features Lacking(kernels::Features features) const ABSL_LOCKS_EXCLUDED(mutex_);
  uint32_t widest_vocabulary() const ABSL_LOCKS_EXCLUDED(mutex_);
  double SecondsToDrain(const Router::BatchSummary& batch, absl::Time now) const ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<absl::Duration> BusyTimes(absl::Time now) const ABSL_LOCKS_EXCLUDED(mutex_);
  Costs CostsAt(const devices::Device* device, absl::Time now) const ABSL_LOCKS_EXCLUDED(mutex_);

  // A batch starts on the device. Dropped or Ended must follow, with the same shape.
  void Started(const devices::Device* device, const Router::BatchSummary& shape, absl::Time now)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The batch lost all its rows before it reached the device.
  void Dropped(const devices::Device* device, const Router::BatchSummary& shape) ABSL_LOCKS_EXCLUDED(mutex_);

  struct EndedBatch {
    const devices::Device* device = nullptr;
    Router::BatchSummary shape;
    uint64_t unchecked_rows = 0;              // rows that were not compared with the reference
    std::vector<std::string_view> sequences;  // its rows' sequences; needed only if RemembersSequences()
  };
  // Takes the end of a batch: `status` is the device's error, or Recheck's. Returns OK if the outputs may be used;
  // otherwise the reason why the batch must run again. Outputs of a device that was quarantined meanwhile may not be
  // used, but a device's that an operator holds may.
  absl::Status Ended(const EndedBatch& batch, absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns true if the next row of a batch is to be re-checked. Free of locks if no rows are.
  bool DrawRecheck() ABSL_LOCKS_EXCLUDED(mutex_);
  struct CheckedRow {
    const devices::DeviceRow* row = nullptr;
    const kernels::RowOutput* output = nullptr;
  };
  // Compares rows of one batch with the reference; DATA_LOSS if an output is wrong. Blocks for milliseconds a row.
  absl::Status Recheck(const devices::Device* device, std::span<const CheckedRow> rows) const;
  // True if only a part of the rows is re-checked. Then a wrong output casts doubt on earlier ones, and the event that
  // reports it lists their sequences.
  bool RemembersSequences() const { return options_.recheck_share > 0 && options_.recheck_share < 1; }

  // Periodic work: ends the back-offs that are over, and starts the self-tests that are due.
  void EndBackoffs(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  void StartSelfTests() ABSL_LOCKS_EXCLUDED(mutex_);

  // Takes the verdict of a self-test that ran before the first row. Does not call `changed`.
  void SetSelfTested(const devices::Device* device, const devices::SelfTest::Verdict& verdict)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Starts a self-test of the device for an operator. A device that serves continues meanwhile and leaves if it fails;
  // another device joins if it passes. `done` gets the verdict, on any thread. NOT_FOUND if there is no such device,
  // FAILED_PRECONDITION while a self-test of it runs or if devices are never out of service; then `done` is not called.
  absl::Status RunSelfTest(std::string_view device, std::function<void(absl::Status)> done) ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes a device out of service until RunSelfTest; batches that it already has are answered. NOT_FOUND if there is no
  // such device, FAILED_PRECONDITION if no other device serves or if devices are never out of service.
  absl::Status Hold(std::string_view device, const std::string& why) ABSL_LOCKS_EXCLUDED(mutex_);

  std::vector<DeviceStatus> statuses() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Rows that a device has answered since its last self-test.
  struct Answered {
    uint64_t unchecked_rows = 0;
    absl::flat_hash_set<std::string> sequences;
  };

  absl::StatusOr<devices::Device*> FindDevice(std::string_view name) const;
  void Remember(const EndedBatch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BackOff(const devices::Device* device, const Router::Needs& needs, const absl::Status& why, absl::Time now,
               DeviceEvent* event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Quarantine(const devices::Device* device, const absl::Status& why, absl::Time now, DeviceEvent* event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndSelfTest(devices::Device* device, const devices::SelfTest::Verdict& verdict) ABSL_LOCKS_EXCLUDED(mutex_);
  void TakeVerdict(const devices::Device* device, const devices::SelfTest::Verdict& verdict, absl::Time now,
                   DeviceEvent* event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Logs the event if it names a device.
  void Log(const DeviceEvent& event) ABSL_LOCKS_EXCLUDED(mutex_);

  const DeviceKeeperOptions options_;
  const std::vector<devices::Device*> devices_;
  const Clock& clock_;
  Observer& observer_;
  const std::function<void()> changed_;
  mutable absl::Mutex mutex_;
  Router router_ ABSL_GUARDED_BY(mutex_);
  RecheckLottery lottery_ ABSL_GUARDED_BY(mutex_);
  uint32_t self_tests_ ABSL_GUARDED_BY(mutex_) = 0;  // that run
  // Devices with a running self-test that an operator requested.
  absl::flat_hash_set<const devices::Device*> requested_ ABSL_GUARDED_BY(mutex_);
  std::map<const devices::Device*, Answered> answered_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sortition::service
