// A row between its submission and its device.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "devices/device.h"
#include "service/route/router.h"

namespace sortition::service {

class PendingStep;

// Identifies the tenant, and the stream within the tenant, that a row's use of the devices counts for. Two owners with
// the same numbers share one share.
struct QueueOwner {
  uint64_t tenant = 0;
  uint64_t stream = 0;
};

// Returns the owner of a new stream of this tenant: its stream number is unique in the process. Thread-safe.
QueueOwner NextOwner(const std::string& tenant);
// Returns the owner of all unary calls of this tenant. They have the share of one stream and end in turn, so that many
// calls delay no stream, and few of them hold results at once.
QueueOwner OwnerOfCalls(const std::string& tenant);

// The data that a row refers to lives as long as its step.
struct QueuedRow {
  uint32_t index = 0;
  std::string_view sequence = {};  // request id
  devices::DeviceRow row = {};
};

// Rows of a step that joined the queue together. They stay where they are until the last of them is delivered.
struct Submission {
  std::shared_ptr<PendingStep> step;
  std::vector<QueuedRow> rows;
  QueueOwner owner = {};
  int32_t priority = 0;
  absl::Time since = absl::InfinitePast();  // time of arrival
};

struct WaitingRow {
  std::shared_ptr<Submission> its;  // has `row`
  QueuedRow* row = nullptr;
  Router::Needs needs = {};                    // NeedsOf the row
  uint64_t number = 0;                         // by order of arrival
  uint32_t attempts = 0;                       // devices that failed the row
  std::shared_ptr<const void> copy = nullptr;  // owns the row's bytes after TakeCopy

  const std::shared_ptr<PendingStep>& step() const { return its->step; }
};

uint64_t BytesOf(const devices::DeviceRow& row);

// Copies the row's bytes to the host's memory and lets the row refer to the copy. An error, of reading a device's
// memory, leaves the row unchanged. Blocks for as long as that device takes.
absl::Status TakeCopy(WaitingRow* waiting);

Router::Needs NeedsOf(const devices::DeviceRow& row);

// Describes rows, at least one, as one batch. Absent unless they lie in one memory and have equal needs. Each row
// counts the bytes of the first one.
std::optional<Router::BatchSummary> WholeIfAlike(const std::vector<QueuedRow>& rows);

}  // namespace sortition::service
