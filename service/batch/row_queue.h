// Rows that wait for a device, as open batches: one for each kind of row that devices tell apart.
//
// Rows of one open batch lie in one memory, and the same devices can take them. So a batch that waits for the device
// where its rows lie does not hold up batches for other devices.
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

// Rows of the highest priority go first. Within a priority and an open batch, tenants have equal shares (fair_queue.h).
// Among open batches, the one with the oldest next row goes first.
//
// No row waits without end: of the rows that a device takes while others of lower priority wait for it, one of
// kTurnOfOldest is taken by age alone. It is the oldest of the next rows of all priorities and open batches. Not
// thread-safe.
class RowQueue {
 public:
  static constexpr uint32_t kTurnOfOldest = 16;

  // `devices`: at most 64; not owned.
  explicit RowQueue(std::vector<const devices::Device*> devices);

  void Add(WaitingRow&& row);
  uint32_t rows() const { return rows_; }

  // Returns the open batches, ordered by their next rows; those with the oldest row of a device whose turn has come are
  // before the others. Each is described as if all its rows were like its next one.
  std::vector<Router::BatchSummary> OpenBatches() const;
  // Takes the first row that lies in `memory` and that the device, one of the queue's, can take.
  std::optional<WaitingRow> TakeFor(const devices::DeviceDescription& device, uint32_t memory);
  // Removes the rows for which `is_out` returns true; it may move from them.
  void EraseIf(const std::function<bool(WaitingRow&)>& is_out);

  // Number of waiting rows of the owner's tenant, and of the owner's stream.
  struct OwnerRows {
    uint32_t tenant = 0;
    uint32_t stream = 0;
  };
  OwnerRows RowsOf(const QueueOwner& owner) const;
  // The part of the queue that goes before such a row of the owner if it arrived now.
  struct Ahead {
    Router::BatchSummary all;  // the open batch for the row; without rows if there is none
    double share = 0;          // part of its work that goes before the row; above 1 if others keep adding rows
  };
  Ahead AheadOf(const devices::DeviceRow& row, const QueueOwner& owner, int32_t priority) const;

 private:
  using Rows = std::map<int32_t, FairQueue, std::greater<>>;  // by priority; no queue is empty
  struct OpenBatch {
    uint64_t able = 0;  // devices that can take the rows, a bit each
    uint32_t memory = devices::kHostMemory;
    uint32_t count = 0;
    Rows rows;
    const WaitingRow& front() const { return rows.begin()->second.front(); }
    // Describes the batch as if all its rows were like its first.
    Router::BatchSummary Whole() const;
  };

  // The rows of one priority in an open batch.
  struct Level {
    size_t open;  // in open_
    int32_t priority;
  };

  static bool IsBefore(const WaitingRow& a, const WaitingRow& b);
  uint64_t AbleToTake(const Router::Needs& needs) const;
  // Returns the level with the oldest next row that the device can take if its turn has come.
  std::optional<Level> TurnOfOldest(size_t device) const;
  // Returns the level whose next row goes first by its priority.
  std::optional<Level> FirstLevel(size_t device, uint32_t memory) const;
  // Notes that the device has taken a row of this priority.
  void CountTurn(size_t device, int32_t priority);

  const std::vector<const devices::Device*> devices_;
  std::vector<uint32_t> passed_;  // by device: rows taken before rows of lower priority, since the oldest had a turn
  std::vector<OpenBatch> open_;   // no open batch is empty
  uint32_t rows_ = 0;
};

}  // namespace sortition::service
