// Chooses the device of the next batch, by capability, health and the time that it will take there.
//
// Every choice gives the same answer, so the router is free to choose. It learns each device's costs from the batches
// that it has done, expects each batch to be done when what the device already has is done and then it, and chooses the
// device where that comes first. If that is a device without room, the batch waits: it would be done later elsewhere.
// Logits that lie in a device's memory stay there as long as it serves.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "devices/device.h"
#include "service/route/cost_model.h"
#include "service/route/health.h"
#include "service/route/policy.h"

namespace sortition::service {

// What the router knows of a device, for people.
struct DeviceStatus {
  const devices::Device* device = nullptr;
  DeviceState state = DeviceState::kServing;
  std::string reason;
  Costs costs;
};

// Not thread-safe; the batcher guards it.
class Router {
 public:
  // What a row, or all rows of a batch, ask of a device.
  struct Needs {
    uint32_t vocabulary = 0;
    kernels::Features features = kernels::kNoFeatures;
  };
  // Of a batch that may be chosen for: what it asks of a device, and of its longest row.
  struct Batch {
    uint32_t rows = 0;
    uint64_t bytes = 0;
    uint32_t vocabulary = 0;
    uint32_t memory = devices::kHostMemory;  // where its logits lie
    kernels::Features features = kernels::kNoFeatures;
    Needs needs() const { return {vocabulary, features}; }
  };
  struct Choice {
    devices::Device* device = nullptr;
    RouteReason reason = RouteReason::kFastest;
  };

  // `devices` are not owned and outlive the router. They serve from the start. A pinned device that is not among them
  // is a broken invariant.
  explicit Router(std::vector<devices::Device*> devices, const RoutePolicy& policy = {}, uint64_t random_seed = 0);

  static bool CanTake(const devices::DeviceDescription& device, const Needs& needs);

  // Null where the batch has to wait.
  Choice Choose(const Batch& batch, absl::Time now);
  // Whether any device that serves is able to take the batch, now or later.
  bool CanServe(const Needs& needs) const { return OtherCanServe(nullptr, needs); }
  // The same of the devices but `device`.
  bool OtherCanServe(const devices::Device* device, const Needs& needs) const;

  // Expected until the devices that serve would have done the batch, sharing it out among them and beginning with it
  // now. Infinite where none is able to take it.
  double SecondsToDrain(const Batch& batch, absl::Time now) const;

  // A batch starts; `Finished` ends it. `is_measured`: it was done in whole, so its time teaches something.
  void Started(const devices::Device* device, const Batch& batch, absl::Time now);
  void Finished(const devices::Device* device, const Batch& batch, bool is_measured, absl::Time now);

  // Of all devices whose time has come.
  void EndBackoffs(absl::Time now);
  DeviceHealth& health(const devices::Device* device) { return Find(device).health; }
  CostModel& costs(const devices::Device* device) { return Find(device).costs; }
  const CostModel& costs(const devices::Device* device) const { return Find(device).costs; }
  std::vector<devices::Device*> DueForSelfTest(absl::Time now) const;
  std::vector<DeviceStatus> Statuses() const;

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
    double expected = 0;                             // seconds of all in flight
    absl::Time worked_since = absl::InfinitePast();  // on what is in flight now
  };

  Entry& Find(const devices::Device* device);
  const Entry& Find(const devices::Device* device) const;
  bool IsAble(const Entry& entry, const Needs& needs) const;
  // Whether the batch is for the devices in whose memory its logits are: where one of them is able to take it.
  bool StaysInMemory(const Batch& batch) const;
  static bool IsThere(const Entry& entry, const Batch& batch) {
    return entry.device->description().memory == batch.memory;
  }
  // Whether every device that serves has what the batch's rows ask of its kernels.
  bool AllHave(kernels::Features features) const;
  static bool HasRoom(const Entry& entry) {
    return entry.in_flight.size() < entry.device->description().batches_in_flight;
  }
  static Work WorkOf(const Entry& entry, const Batch& batch);
  // From now until the batch would be done.
  static double SecondsUntilDone(const Entry& entry, const Batch& batch, absl::Time now);
  Choice ChooseFastest(const std::vector<Entry*>& able, const Batch& batch, absl::Time now) const;

  const RoutePolicy policy_;
  std::mt19937_64 random_;
  std::vector<Entry> entries_;
  size_t turn_ = 0;
  std::vector<Entry*> able_;  // memory of Choose
};

}  // namespace sortition::service
