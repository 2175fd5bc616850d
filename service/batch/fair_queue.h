// Rows of one kind and priority, in an order that gives each client its share.
//
// Tenants share devices equally, and the streams of a tenant share what it gets. Shares are of work, a row's
// bytes and something for the row itself, so that neither many small rows nor few large ones get more. Within a stream
// the oldest row goes first. Rows that come back because a device failed them go before all others, and cost nothing
// again.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>

#include "service/batch/fair_order.h"
#include "service/batch/waiting_row.h"

namespace sortition::service {

// What waits.
struct Backlog {
  uint32_t rows = 0;
  uint64_t work = 0;
};

// What of it concerns a client.
struct Standing {
  Backlog all;
  Backlog tenant;
  Backlog stream;
  double tenants = 1;  // that share the work, and ...
  double streams = 1;  // ... streams that share its tenant's; by what has been done of late

  // So much will be done before a row that the client adds now, if others go on as they have.
  double WorkAhead() const { return tenants * streams * double(stream.work); }
};

// Of a row, in bytes: as long as a CPU core needs for the row beside its bytes, it could have read this many.
uint64_t WorkOf(const devices::DeviceRow& row);

// Not thread-safe. Add and Take cost O(log clients).
class FairQueue {
 public:
  // Rows of a stream come in the order of their numbers, but for those that have been tried before.
  void Add(WaitingRow row);
  bool empty() const { return all_.rows == 0; }
  uint32_t rows() const { return all_.rows; }
  const WaitingRow& front() const;
  WaitingRow Take();
  // Takes out the rows of which `is_out` says so; it may move from them.
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
  // A second stream has come.
  void LeaveAlone();

  Backlog all_;
  Stream alone_;  // a stream without others takes no turns; empty while tenants_ is not
  QueueOwner alone_owner_;
  FairOrder<Tenant> tenants_;
  std::deque<WaitingRow> again_;  // by number
};

}  // namespace sortition::service
