// Queue of rows of one kind and priority, in an order that gives each tenant and stream its share.
//
// Tenants share the devices equally, and the streams of a tenant share the tenant's part. Shares are counted in work: a
// row's bytes plus a constant for each row, so neither many small rows nor few large ones get more. Within a stream the
// oldest row goes first. Rows that return because a device failed them go before all others and are not charged again.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>

#include "service/batch/fair_order.h"
#include "service/batch/waiting_row.h"

namespace sortition::service {

// Rows that wait, and their work.
struct Backlog {
  uint32_t rows = 0;
  uint64_t work = 0;
};

// State of the queue as one owner sees it.
struct Standing {
  Backlog all;
  Backlog tenant;
  Backlog stream;
  double tenants = 1;  // effective number of tenants that share the work (FairOrder::sharers)
  double streams = 1;  // effective number of streams that share the tenant's work

  // Work that is done before a row that the owner adds now, if all continue at their recent rates.
  double WorkAhead() const { return tenants * streams * double(stream.work); }
};

// Returns the row's work, in bytes: its logits, plus the bytes that a CPU core could read in the time of the row's
// other work.
uint64_t WorkOf(const devices::DeviceRow& row);

// Not thread-safe. Add and Take cost O(log streams).
class FairQueue {
 public:
  // Rows of a stream must arrive in the order of their numbers, except those that were tried before.
  void Add(WaitingRow&& row);
  bool empty() const { return all_.rows == 0; }
  uint32_t rows() const { return all_.rows; }
  const WaitingRow& front() const;
  WaitingRow Take();
  // Removes the rows for which `is_out` returns true; it may move from them.
  void EraseIf(const std::function<bool(WaitingRow&)>& is_out);

  Standing StandingOf(const QueueOwner& owner) const;

 private:
  struct Stream {
    Backlog backlog;
    std::deque<WaitingRow> rows;
    bool empty() const { return rows.empty(); }
  };
  struct Tenant {
    Backlog backlog;
    FairOrder<Stream> streams;
    bool empty() const { return backlog.rows == 0; }
  };

  bool IsAlone(const QueueOwner& owner) const {
    return owner.tenant == alone_owner_.tenant && owner.stream == alone_owner_.stream;
  }
  // Moves the rows of the only stream into the fair order, because a second stream arrives.
  void LeaveAlone();

  Backlog all_;
  Stream alone_;  // rows of the only stream, which needs no fair order; empty while tenants_ is not
  QueueOwner alone_owner_;
  FairOrder<Tenant> tenants_;
  std::deque<WaitingRow> again_;  // rows that a device has failed, by number
};

}  // namespace sortition::service
