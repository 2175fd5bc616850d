// Open batches are few, so they are searched linearly.
#include "service/batch/row_queue.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"

namespace sortition::service {

RowQueue::RowQueue(std::vector<const devices::Device*> devices) : devices_(std::move(devices)) {
  SORTITION_CHECK(devices_.size() <= 64);
}

bool RowQueue::IsBefore(const WaitingRow& a, const WaitingRow& b) {
  const int32_t first = a.its->priority, second = b.its->priority;
  return first > second || (first == second && a.number < b.number);
}

uint64_t RowQueue::AbleToTake(const Router::Needs& needs) const {
  uint64_t able = 0;
  for (size_t i = 0; i < devices_.size(); ++i) {
    able |= uint64_t{Router::CanTake(devices_[i]->description(), needs)} << i;
  }
  return able;
}

void RowQueue::Add(WaitingRow&& row) {
  const uint64_t able = AbleToTake(row.needs);
  const uint32_t memory = row.row->row.memory;
  auto open = std::find_if(open_.begin(), open_.end(),
                           [&](const OpenBatch& other) { return other.able == able && other.memory == memory; });
  if (open == open_.end()) open = open_.insert(open_.end(), {able, memory, 0, {}});
  ++open->count;
  ++rows_;
  FairQueue& rows = open->rows[row.its->priority];
  rows.Add(std::move(row));
}

Router::Batch RowQueue::OpenBatch::Whole() const {
  const WaitingRow& first = front();
  return {count, count * BytesOf(first.row->row), first.needs.vocabulary, memory, first.needs.features};
}

std::vector<Router::Batch> RowQueue::OpenBatches() const {
  std::vector<const OpenBatch*> order;
  for (const OpenBatch& open : open_) order.push_back(&open);
  std::sort(order.begin(), order.end(),
            [](const OpenBatch* a, const OpenBatch* b) { return IsBefore(a->front(), b->front()); });
  std::vector<Router::Batch> batches;
  for (const OpenBatch* open : order) batches.push_back(open->Whole());
  return batches;
}

std::optional<WaitingRow> RowQueue::TakeFor(const devices::DeviceDescription& device, uint32_t memory) {
  auto first = open_.end();
  for (auto open = open_.begin(); open != open_.end(); ++open) {
    if (open->memory != memory || !Router::CanTake(device, open->front().needs)) continue;
    if (first == open_.end() || IsBefore(open->front(), first->front())) first = open;
  }
  if (first == open_.end()) return std::nullopt;
  const auto rows = first->rows.begin();
  std::optional<WaitingRow> row = rows->second.Take();
  if (rows->second.empty()) first->rows.erase(rows);
  if (--first->count == 0) open_.erase(first);
  --rows_;
  return row;
}

void RowQueue::EraseIf(const std::function<bool(WaitingRow&)>& is_out) {
  for (OpenBatch& open : open_) {
    for (auto& [priority, rows] : open.rows) {
      const uint32_t before = rows.rows();
      rows.EraseIf(is_out);
      open.count -= before - rows.rows();
      rows_ -= before - rows.rows();
    }
    std::erase_if(open.rows, [](const auto& entry) { return entry.second.empty(); });
  }
  std::erase_if(open_, [](const OpenBatch& open) { return open.count == 0; });
}

RowQueue::OwnerRows RowQueue::RowsOf(const QueueOwner& owner) const {
  OwnerRows rows;
  for (const OpenBatch& open : open_) {
    for (const auto& [priority, queue] : open.rows) {
      const Standing standing = queue.StandingOf(owner);
      rows.tenant += standing.tenant.rows;
      rows.stream += standing.stream.rows;
    }
  }
  return rows;
}

RowQueue::Ahead RowQueue::AheadOf(const devices::DeviceRow& row, const QueueOwner& owner, int32_t priority) const {
  const uint64_t able = AbleToTake(NeedsOf(row));
  const auto open = std::find_if(open_.begin(), open_.end(), [&](const OpenBatch& other) {
    return other.able == able && other.memory == row.memory;
  });
  if (open == open_.end()) return {};
  double all = 0;
  double before = 0;
  for (const auto& [other, queue] : open->rows) {
    const Standing standing = queue.StandingOf(owner);
    all += double(standing.all.work);
    if (other >= priority) before += other > priority ? double(standing.all.work) : standing.WorkAhead();
  }
  return {open->Whole(), before / all};
}

}  // namespace sortition::service
