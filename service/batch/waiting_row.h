// A row between its submission and its device.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "devices/device.h"
#include "service/route/router.h"

namespace sortition::service {

class PendingStep;

// Among whom devices are shared out: tenants, and within each of them its streams. Numbers that tell them apart;
// where two should have the same, they share one share.
struct QueueOwner {
  uint64_t tenant = 0;
  uint64_t stream = 0;
};

struct QueuedRow {
  uint32_t index = 0;
  std::string sequence;    // its request id
  devices::DeviceRow row;  // all it refers to stays alive as long as its step does
};

struct WaitingRow {
  std::shared_ptr<PendingStep> step;
  QueuedRow row;
  QueueOwner owner = {};
  int32_t priority = 0;
  uint64_t number = 0;                         // in the order of arrival
  absl::Time since = absl::InfinitePast();     // when it came
  uint32_t attempts = 0;                       // that failed
  std::shared_ptr<const void> copy = nullptr;  // of the row's bytes, if it refers to one
};

uint64_t BytesOf(const devices::DeviceRow& row);

// From now on the row reads a copy of its bytes, in the host's memory. An error, of a device's memory, leaves the row
// as it was; blocks for as long as that device takes.
absl::Status TakeCopy(WaitingRow* waiting);

Router::Needs NeedsOf(const devices::DeviceRow& row);

}  // namespace sortition::service
