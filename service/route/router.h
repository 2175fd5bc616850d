// Chooses the device of the next batch, by capability, health and expected time.
//
// Every choice gives the same results, so the router is free to choose. It learns each device's costs from the batches
// that the device has done. It expects a batch to finish after all that the device already has, and chooses the device
// where it finishes first. If that device has no room, the batch waits: it would finish later elsewhere. Logits that
// lie in a device's memory stay there as long as that device serves.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "devices/device.h"
#include "service/route/cost_model.h"
#include "service/route/health.h"
#include "service/route/route_policy.h"

namespace sortition::service {

// State of a device, for people.
struct DeviceStatus {
  const devices::Device* device = nullptr;
  DeviceState state = DeviceState::kServing;
  std::string reason;
  Costs costs;
};

// Not thread-safe; the device keeper guards it.
class Router {
 public:
  // Requirements of a row, or of all rows of a batch.
  struct Needs {
    uint32_t vocabulary = 0;
    kernels::Features features = kernels::kNoFeatures;
    bool operator==(const Needs&) const = default;
  };
  // Describes a batch: totals, and the requirements of its most demanding row.
  struct BatchSummary {
    uint32_t rows = 0;
    uint64_t bytes = 0;
    uint32_t vocabulary = 0;
    uint32_t memory = devices::kHostMemory;  // where the logits lie
    kernels::Features features = kernels::kNoFeatures;
    Needs needs() const { return {vocabulary, features}; }
  };
  struct Choice {
    devices::Device* device = nullptr;
    RouteReason reason = RouteReason::kFastest;
  };

  // `devices` are not owned and outlive the router. They serve from the start. A pinned device must be among them.
  explicit Router(std::vector<devices::Device*> devices, const RoutePolicy& policy = {});

  static bool CanTake(const devices::DeviceDescription& device, const Needs& needs);

  // Returns the features that are missing on the device that lacks the fewest of these; none if a device has all.
  // Counts devices that do not serve too.
  kernels::Features Lacking(kernels::Features features) const;
  // Returns the width of the widest rows that a device takes, likewise.
  uint32_t widest_vocabulary() const;

  // Returns no device if the batch has to wait.
  Choice Choose(const BatchSummary& batch, absl::Time now);
  // Returns true if any serving device can take such rows, now or later.
  bool CanServe(const Needs& needs) const { return OtherCanServe(nullptr, needs); }
  // As CanServe, without `device`.
  bool OtherCanServe(const devices::Device* device, const Needs& needs) const;

  // Expected seconds until the serving devices have done the batch, if they share it and start with it now. Infinite if
  // no device can take it.
  double SecondsToDrain(const BatchSummary& batch, absl::Time now) const;

  // Records the start and the end of a batch. `is_measured`: the device did all of it, so its time enters the cost
  // model.
  void Started(const devices::Device* device, const BatchSummary& batch, absl::Time now);
  void Finished(const devices::Device* device, const BatchSummary& batch, bool is_measured, absl::Time now);

  // Ends the back-off of each device whose pause is over.
  void EndBackoffs(absl::Time now);
  DeviceHealth& health(const devices::Device* device) { return Find(device).health; }
  CostModel& costs(const devices::Device* device) { return Find(device).costs; }
  const CostModel& costs(const devices::Device* device) const { return Find(device).costs; }
  std::vector<devices::Device*> DueForSelfTest(absl::Time now) const;
  std::vector<DeviceStatus> Statuses() const;
  // Returns for each device the time since the start in which it had a batch.
  std::vector<absl::Duration> BusyTimes(absl::Time now) const;

 private:
  struct InFlight {
    Work work;
    double expected = 0;  // seconds
  };
  struct Entry {
    devices::Device* device = nullptr;
    DeviceHealth health;
    CostModel costs;
    std::vector<InFlight> in_flight;
    double expected = 0;                             // seconds, sum over in_flight
    absl::Time worked_since = absl::InfinitePast();  // start of the time that in_flight is charged with
    absl::Duration busy;                             // up to worked_since
  };

  Entry& Find(const devices::Device* device);
  const Entry& Find(const devices::Device* device) const;
  // Returns true if the policy gives the device rows.
  bool IsEligible(const Entry& entry) const {
    return policy_.pinned.empty() || entry.device->description().name == policy_.pinned;
  }
  bool IsAble(const Entry& entry, const Needs& needs) const;
  // Returns true if only a device with the logits in its memory may get the batch: if such a device can take it.
  bool StaysInMemory(const BatchSummary& batch) const;
  static bool IsThere(const Entry& entry, const BatchSummary& batch) {
    return entry.device->description().memory == batch.memory;
  }
  // Returns true if all serving devices have these kernels.
  bool AllHave(kernels::Features features) const;
  static bool HasRoom(const Entry& entry) {
    return entry.in_flight.size() < entry.device->description().batches_in_flight;
  }
  static Work WorkOf(const Entry& entry, const BatchSummary& batch);
  // Expected seconds from now until the batch is done.
  static double SecondsUntilDone(const Entry& entry, const BatchSummary& batch, absl::Time now);
  Choice ChooseFastest(const std::vector<Entry*>& able, const BatchSummary& batch, absl::Time now) const;

  const RoutePolicy policy_;
  std::vector<Entry> entries_;
  std::vector<Entry*> able_;  // scratch memory of Choose
};

}  // namespace sortition::service
