// Health of devices: quarantine, back-off, self-tests and re-checks.
#include "service/route/device_keeper.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace sortition::service {

DeviceKeeper::DeviceKeeper(std::vector<devices::Device*> devices, const Clock* clock, Observer* observer,
                           DeviceKeeperOptions options, std::function<void()> changed)
    : options_(std::move(options)),
      devices_(std::move(devices)),
      clock_(*clock),
      observer_(*observer),
      changed_(std::move(changed)),
      router_(devices_, options_.policy),
      lottery_(options_.recheck_share, options_.seed) {}

DeviceKeeper::~DeviceKeeper() {
  const auto done = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return self_tests_ == 0; };
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&done));
}

Router::Choice DeviceKeeper::Choose(const Router::BatchSummary& batch, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  return router_.Choose(batch, now);
}

bool DeviceKeeper::CanServe(const Router::Needs& needs) const {
  absl::MutexLock lock(&mutex_);
  return router_.CanServe(needs);
}

bool DeviceKeeper::OtherCanServe(const devices::Device* device, const Router::Needs& needs) const {
  absl::MutexLock lock(&mutex_);
  return router_.OtherCanServe(device, needs);
}

kernels::Features DeviceKeeper::Lacking(kernels::Features features) const {
  absl::MutexLock lock(&mutex_);
  return router_.Lacking(features);
}

uint32_t DeviceKeeper::widest_vocabulary() const {
  absl::MutexLock lock(&mutex_);
  return router_.widest_vocabulary();
}

double DeviceKeeper::SecondsToDrain(const Router::BatchSummary& batch, absl::Time now) const {
  absl::MutexLock lock(&mutex_);
  return router_.SecondsToDrain(batch, now);
}

std::vector<absl::Duration> DeviceKeeper::BusyTimes(absl::Time now) const {
  absl::MutexLock lock(&mutex_);
  return router_.BusyTimes(now);
}

Costs DeviceKeeper::CostsAt(const devices::Device* device, absl::Time now) const {
  absl::MutexLock lock(&mutex_);
  return router_.costs(device).At(now);
}

void DeviceKeeper::Started(const devices::Device* device, const Router::BatchSummary& shape, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  router_.Started(device, shape, now);
}

void DeviceKeeper::Dropped(const devices::Device* device, const Router::BatchSummary& shape) {
  absl::MutexLock lock(&mutex_);
  router_.Finished(device, shape, false, clock_.Now());
}

absl::Status DeviceKeeper::Ended(const EndedBatch& batch, absl::Status status) {
  if (!status.ok()) observer_.BatchFailed(batch.device->description().name);
  DeviceEvent event;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = clock_.Now();
    const DeviceHealth& health = router_.health(batch.device);
    const bool serves = health.serves();
    // A held device is healthy: the results of batches that it began before are used.
    const bool is_believed = serves || health.held();
    router_.Finished(batch.device, batch.shape, status.ok(), now);
    if (!status.ok() && serves && options_.self_test != nullptr) {
      absl::IsResourceExhausted(status) ? BackOff(batch.device, batch.shape.needs(), status, now, &event)
                                        : Quarantine(batch.device, status, now, &event);
    }
    if (status.ok() && !is_believed) status = absl::UnavailableError(health.reason());
    if (status.ok() && RemembersSequences()) Remember(batch);
  }
  Log(event);
  return status;
}

void DeviceKeeper::Remember(const EndedBatch& batch) {
  Answered& answered = answered_[batch.device];
  answered.unchecked_rows += batch.unchecked_rows;
  for (const std::string_view sequence : batch.sequences) {
    if (answered.sequences.size() == DeviceEvent::kMostSequences) return;
    answered.sequences.emplace(sequence);
  }
}

// If no other device can take the batch, this one still gets batches: the next may need less memory.
void DeviceKeeper::BackOff(const devices::Device* device, const Router::Needs& needs, const absl::Status& why,
                           absl::Time now, DeviceEvent* event) {
  DeviceHealth& health = router_.health(device);
  if (health.backs_off() || !router_.OtherCanServe(device, needs)) return;
  health.BackOff(now);
  event->device = device->description().name;
  event->state = health.state();
  event->reason =
      absl::StrCat("gets no batches for ", absl::FormatDuration(DeviceHealth::kBatchBackoff), ": ", why.message());
}

void DeviceKeeper::Quarantine(const devices::Device* device, const absl::Status& why, absl::Time now,
                              DeviceEvent* event) {
  DeviceHealth& health = router_.health(device);
  health.Quarantine(std::string(why.message()), now, absl::IsResourceExhausted(why));
  *event = {device->description().name, health.state(), health.reason(), absl::IsDataLoss(why), 0, {}};
  if (!event->gave_wrong_output) return;
  const Answered& answered = answered_[device];
  event->unchecked_rows = answered.unchecked_rows;
  event->sequences.assign(answered.sequences.begin(), answered.sequences.end());
}

bool DeviceKeeper::DrawRecheck() {
  if (options_.recheck_share <= 0) return false;
  absl::MutexLock lock(&mutex_);
  return lottery_.Draw();
}

absl::Status DeviceKeeper::Recheck(const devices::Device* device, std::span<const CheckedRow> rows) const {
  uint32_t wrong = 0;
  for (const CheckedRow& checked : rows) wrong += !IsRight(*checked.row, *checked.output);
  observer_.RowsRechecked(device->description().name, uint32_t(rows.size()) - wrong, wrong);
  if (wrong == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("wrong answers to ", wrong, " live rows"));
}

void DeviceKeeper::EndBackoffs(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  router_.EndBackoffs(now);
}

void DeviceKeeper::StartSelfTests() {
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

void DeviceKeeper::EndSelfTest(devices::Device* device, const devices::SelfTest::Verdict& verdict) {
  SetSelfTested(device, verdict);
  changed_();
  absl::MutexLock lock(&mutex_);
  --self_tests_;
}

void DeviceKeeper::SetSelfTested(const devices::Device* device, const devices::SelfTest::Verdict& verdict) {
  DeviceEvent event;
  {
    absl::MutexLock lock(&mutex_);
    TakeVerdict(device, verdict, clock_.Now(), &event);
  }
  Log(event);
}

void DeviceKeeper::TakeVerdict(const devices::Device* device, const devices::SelfTest::Verdict& verdict, absl::Time now,
                               DeviceEvent* event) {
  // The device failed a live batch, or was held, while its self-test ran.
  if (router_.health(device).state() == DeviceState::kQuarantined) return;
  answered_.erase(device);
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

absl::StatusOr<devices::Device*> DeviceKeeper::FindDevice(std::string_view name) const {
  if (options_.self_test == nullptr) {
    return absl::FailedPreconditionError("devices of this server are never out of service");
  }
  for (devices::Device* device : devices_) {
    if (device->description().name == name) return device;
  }
  return absl::NotFoundError("no device has this name");
}

absl::Status DeviceKeeper::RunSelfTest(std::string_view name, std::function<void(absl::Status)> done) {
  const absl::StatusOr<devices::Device*> found = FindDevice(name);
  if (!found.ok()) return found.status();
  devices::Device* const device = *found;
  {
    absl::MutexLock lock(&mutex_);
    DeviceHealth& health = router_.health(device);
    if (health.state() == DeviceState::kSelfTest || !requested_.insert(device).second) {
      return absl::FailedPreconditionError("a self-test of the device runs already");
    }
    if (!health.serves()) health.SelfTestStarted();
    ++self_tests_;
  }
  options_.self_test->Start(device, [this, device, done = std::move(done)](const devices::SelfTest::Verdict& verdict) {
    {
      absl::MutexLock lock(&mutex_);
      requested_.erase(device);
    }
    EndSelfTest(device, verdict);
    done(verdict.status);
  });
  return absl::OkStatus();
}

absl::Status DeviceKeeper::Hold(std::string_view name, const std::string& why) {
  const absl::StatusOr<devices::Device*> found = FindDevice(name);
  if (!found.ok()) return found.status();
  DeviceEvent event;
  {
    absl::MutexLock lock(&mutex_);
    bool other_serves = false;
    for (const devices::Device* device : devices_) {
      other_serves = other_serves || (device != *found && router_.health(device).serves());
    }
    if (!other_serves) return absl::FailedPreconditionError("no other device serves; drain the server instead");
    DeviceHealth& health = router_.health(*found);
    health.Hold(absl::StrCat("held by an operator", why.empty() ? "" : ": ", why));
    event = {(*found)->description().name, health.state(), health.reason(), false, 0, {}};
  }
  Log(event);
  changed_();
  return absl::OkStatus();
}

void DeviceKeeper::Log(const DeviceEvent& event) {
  if (options_.event_log != nullptr && !event.device.empty()) options_.event_log->DeviceChanged(event);
}

std::vector<DeviceStatus> DeviceKeeper::statuses() const {
  absl::MutexLock lock(&mutex_);
  return router_.Statuses();
}

}  // namespace sortition::service
