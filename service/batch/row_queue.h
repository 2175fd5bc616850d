// Rows that wait for a device, as open batches: one for each kind of row that devices tell apart.
//
// Rows of one open batch lie in one memory, and the same devices are able to take them. So a batch that waits for the
// device where its rows lie holds up none that runs elsewhere.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "devices/device.h"
#include "service/route/router.h"

namespace sortition::service {

class PendingStep;

struct QueuedRow {
  uint32_t index = 0;
  std::string sequence;    // its request id
  devices::DeviceRow row;  // all it refers to stays alive as long as its step does
};

struct WaitingRow {
  std::shared_ptr<PendingStep> step;
  QueuedRow row;
  int32_t priority = 0;
  uint64_t number = 0;                         // in the order of arrival
  uint32_t attempts = 0;                       // that failed
  std::shared_ptr<const void> copy = nullptr;  // of the row's bytes, if it refers to one
};

uint64_t BytesOf(const devices::DeviceRow& row);
Router::Needs NeedsOf(const devices::DeviceRow& row);

// Highest priority first, oldest first within a priority. Not thread-safe.
class RowQueue {
 public:
  // At most 64 devices; not owned.
  explicit RowQueue(std::vector<const devices::Device*> devices);

  // A row takes its place by priority and number.
  void Add(WaitingRow row);
  uint32_t rows() const { return rows_; }

  // What the open batches would be, if every row of each were like its first: in the order of their first rows.
  std::vector<Router::Batch> OpenBatches() const;
  // Takes the first row that lies in `memory` and that the device is able to take.
  std::optional<WaitingRow> TakeFor(const devices::DeviceDescription& device, uint32_t memory);
  // Takes out the rows of which `is_out` says so; it may move from them.
  void EraseIf(const std::function<bool(WaitingRow&)>& is_out);

 private:
  using Rows = std::map<int32_t, std::deque<WaitingRow>, std::greater<>>;  // by priority; no entry is empty
  struct OpenBatch {
    uint64_t able = 0;  // devices, a bit each
    uint32_t memory = devices::kHostMemory;
    uint32_t count = 0;
    Rows rows;
    const WaitingRow& front() const { return rows.begin()->second.front(); }
  };

  static bool IsBefore(const WaitingRow& a, const WaitingRow& b);
  uint64_t AbleToTake(const Router::Needs& needs) const;

  const std::vector<const devices::Device*> devices_;
  std::vector<OpenBatch> open_;  // none empty
  uint32_t rows_ = 0;
};

}  // namespace sortition::service
