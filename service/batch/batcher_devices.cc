// Single devices: what an operator does with them, and the rest of one without memory.
#include <utility>

#include "absl/strings/str_cat.h"
#include "service/batch/batcher.h"

namespace sortition::service {

absl::StatusOr<devices::Device*> Batcher::FindDevice(std::string_view name) const {
  if (options_.self_test == nullptr) {
    return absl::FailedPreconditionError("devices of this server are never out of service");
  }
  for (devices::Device* device : devices_) {
    if (device->description().name == name) return device;
  }
  return absl::NotFoundError("no device has this name");
}

absl::Status Batcher::Prove(std::string_view name, std::function<void(absl::Status)> done) {
  const absl::StatusOr<devices::Device*> found = FindDevice(name);
  if (!found.ok()) return found.status();
  devices::Device* const device = *found;
  {
    absl::MutexLock lock(&mutex_);
    DeviceHealth& health = router_.health(device);
    if (health.state() == DeviceState::kProving || !asked_.insert(device).second) {
      return absl::FailedPreconditionError("the device proves itself already");
    }
    if (!health.serves()) health.SelfTestStarted();
    ++self_tests_;
  }
  options_.self_test->Start(device, [this, device, done = std::move(done)](const devices::SelfTest::Verdict& verdict) {
    {
      absl::MutexLock lock(&mutex_);
      asked_.erase(device);
    }
    EndSelfTest(device, verdict);
    done(verdict.status);
  });
  return absl::OkStatus();
}

absl::Status Batcher::Hold(std::string_view name, const std::string& why) {
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
  Tell(event);
  Dispatch();
  return absl::OkStatus();
}

// Without another device for its rows it goes on at once: the next may need less.
void Batcher::Rest(const devices::Device* device, const Router::Needs& needs, const absl::Status& why, absl::Time now,
                   DeviceEvent* event) {
  DeviceHealth& health = router_.health(device);
  if (health.rests() || !router_.OtherCanServe(device, needs)) return;
  health.Rest(now);
  event->device = device->description().name;
  event->state = health.state();
  event->reason = absl::StrCat("given nothing for ", absl::FormatDuration(DeviceHealth::kRest), ": ", why.message());
}

}  // namespace sortition::service
