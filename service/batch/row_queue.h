// Rows that wait for a device, as open batches: one for each kind of row that devices tell apart.
//
// Rows of one open batch lie in one memory, and the same devices are able to take them. So a batch that waits for the
// device where its rows lie holds up none that runs elsewhere.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "devices/device.h"
#include "service/batch/fair_queue.h"
#include "service/batch/waiting_row.h"
#include "service/route/router.h"

namespace sortition::service {

// Highest priority first; within a priority and an open batch clients have equal shares (fair_queue.h), and of several
// open batches goes first the one whose next row is oldest. Not thread-safe.
class RowQueue {
 public:
  // At most 64 devices; not owned.
  explicit RowQueue(std::vector<const devices::Device*> devices);

  void Add(WaitingRow row);
  uint32_t rows() const { return rows_; }

  // What the open batches would be, if every row of each were like its first: in the order of their first rows.
  std::vector<Router::Batch> OpenBatches() const;
  // Takes the first row that lies in `memory` and that the device is able to take.
  std::optional<WaitingRow> TakeFor(const devices::DeviceDescription& device, uint32_t memory);
  // Takes out the rows of which `is_out` says so; it may move from them.
  void EraseIf(const std::function<bool(WaitingRow&)>& is_out);

  // Rows of a client's streams: of all in its tenant, and of its own.
  struct OwnerRows {
    uint32_t tenant = 0;
    uint32_t stream = 0;
  };
  OwnerRows RowsOf(const QueueOwner& owner) const;
  // What would go before such a row of the client's if it came now: of its open batch.
  struct Ahead {
    Router::Batch all;  // what waits in the open batch; without rows where there is none
    double share = 0;   // of it, by work, goes before; more than 1 where others go on to come
  };
  Ahead AheadOf(const devices::DeviceRow& row, const QueueOwner& owner, int32_t priority) const;

 private:
  using Rows = std::map<int32_t, FairQueue, std::greater<>>;  // by priority; no entry is empty
  struct OpenBatch {
    uint64_t able = 0;  // devices, a bit each
    uint32_t memory = devices::kHostMemory;
    uint32_t count = 0;
    Rows rows;
    const WaitingRow& front() const { return rows.begin()->second.front(); }
    // As if every row were like the first.
    Router::Batch Whole() const;
  };

  static bool IsBefore(const WaitingRow& a, const WaitingRow& b);
  uint64_t AbleToTake(const Router::Needs& needs) const;

  const std::vector<const devices::Device*> devices_;
  std::vector<OpenBatch> open_;  // none empty
  uint32_t rows_ = 0;
};

}  // namespace sortition::service
