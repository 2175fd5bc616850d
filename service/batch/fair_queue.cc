// Two levels of fair order, tenants and their streams, over queues of rows.
#include "service/batch/fair_queue.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "kernels/check.h"

namespace sortition::service {
namespace {

constexpr uint64_t kRowWork = 32 << 10;

void Count(Backlog* backlog, uint64_t work) {
  ++backlog->rows;
  backlog->work += work;
}

void Uncount(Backlog* backlog, uint64_t work) {
  --backlog->rows;
  backlog->work -= work;
}

}  // namespace

uint64_t WorkOf(const devices::DeviceRow& row) { return kRowWork + BytesOf(row); }

void FairQueue::Add(WaitingRow&& row) {
  const uint64_t work = WorkOf(row.row->row);
  Count(&all_, work);
  if (row.attempts > 0) {
    const auto place = std::upper_bound(again_.begin(), again_.end(), row.number,
                                        [](uint64_t number, const WaitingRow& other) { return number < other.number; });
    again_.insert(place, std::move(row));
    return;
  }
  const bool alone = tenants_.empty() && (alone_.empty() || IsAlone(row.its->owner));
  if (!alone && !alone_.empty()) LeaveAlone();
  Stream* stream = &alone_;
  if (alone) {
    alone_owner_ = row.its->owner;
  } else {
    Tenant& tenant = tenants_.Join(row.its->owner.tenant);
    Count(&tenant.backlog, work);
    stream = &tenant.streams.Join(row.its->owner.stream);
  }
  Count(&stream->backlog, work);
  SORTITION_CHECK(stream->rows.empty() || stream->rows.back().number < row.number);
  stream->rows.push_back(std::move(row));
}

void FairQueue::LeaveAlone() {
  Tenant& tenant = tenants_.Join(alone_owner_.tenant);
  tenant.backlog = alone_.backlog;
  tenant.streams.Join(alone_owner_.stream) = std::exchange(alone_, {});
}

const WaitingRow& FairQueue::front() const {
  if (!again_.empty()) return again_.front();
  return alone_.empty() ? tenants_.front().streams.front().rows.front() : alone_.rows.front();
}

WaitingRow FairQueue::Take() {
  if (!again_.empty()) {
    WaitingRow row = std::move(again_.front());
    again_.pop_front();
    Uncount(&all_, WorkOf(row.row->row));
    return row;
  }
  if (!alone_.empty()) {
    WaitingRow row = std::move(alone_.rows.front());
    alone_.rows.pop_front();
    for (Backlog* backlog : {&all_, &alone_.backlog}) Uncount(backlog, WorkOf(row.row->row));
    return row;
  }
  Tenant& tenant = tenants_.front();
  Stream& stream = tenant.streams.front();
  WaitingRow row = std::move(stream.rows.front());
  stream.rows.pop_front();
  const uint64_t work = WorkOf(row.row->row);
  for (Backlog* backlog : {&all_, &tenant.backlog, &stream.backlog}) Uncount(backlog, work);
  tenant.streams.Charge(work);
  tenants_.Charge(work);
  return row;
}

void FairQueue::EraseIf(const std::function<bool(WaitingRow&)>& is_out) {
  const auto erase = [&](std::deque<WaitingRow>* rows, std::initializer_list<Backlog*> backlogs) {
    std::erase_if(*rows, [&](WaitingRow& row) {
      const uint64_t work = WorkOf(row.row->row);
      if (!is_out(row)) return false;
      for (Backlog* backlog : backlogs) Uncount(backlog, work);
      return true;
    });
  };
  erase(&again_, {&all_});
  erase(&alone_.rows, {&all_, &alone_.backlog});
  tenants_.ForEach([&](Tenant& tenant) {
    tenant.streams.ForEach([&](Stream& stream) { erase(&stream.rows, {&all_, &tenant.backlog, &stream.backlog}); });
  });
}

Standing FairQueue::StandingOf(const QueueOwner& owner) const {
  Standing standing;
  standing.all = all_;
  if (!alone_.empty()) {
    if (owner.tenant == alone_owner_.tenant) standing.tenant = alone_.backlog;
    if (IsAlone(owner)) standing.stream = alone_.backlog;
    return standing;
  }
  const Tenant* const tenant = tenants_.Find(owner.tenant);
  if (tenant == nullptr) return standing;
  standing.tenants = tenants_.sharers();
  standing.tenant = tenant->backlog;
  const Stream* const stream = tenant->streams.Find(owner.stream);
  if (stream == nullptr) return standing;
  standing.streams = tenant->streams.sharers();
  standing.stream = stream->backlog;
  return standing;
}

}  // namespace sortition::service
