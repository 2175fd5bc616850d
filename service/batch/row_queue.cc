// Open batches are few: they are looked through.
#include "service/batch/row_queue.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"

namespace sortition::service {

uint64_t BytesOf(const devices::DeviceRow& row) {
  return uint64_t{row.request.live_vocabulary} * kernels::ElementBytes(row.request.dtype);
}

Router::Needs NeedsOf(const devices::DeviceRow& row) {
  return {row.request.live_vocabulary, kernels::FeaturesOf(row.request)};
}

RowQueue::RowQueue(std::vector<const devices::Device*> devices) : devices_(std::move(devices)) {
  SORTITION_CHECK(devices_.size() <= 64);
}

bool RowQueue::IsBefore(const WaitingRow& a, const WaitingRow& b) {
  return a.priority > b.priority || (a.priority == b.priority && a.number < b.number);
}

uint64_t RowQueue::AbleToTake(const Router::Needs& needs) const {
  uint64_t able = 0;
  for (size_t i = 0; i < devices_.size(); ++i) {
    able |= uint64_t{Router::CanTake(devices_[i]->description(), needs)} << i;
  }
  return able;
}

void RowQueue::Add(WaitingRow row) {
  const uint64_t able = AbleToTake(NeedsOf(row.row.row));
  const uint32_t memory = row.row.row.memory;
  auto open = std::find_if(open_.begin(), open_.end(),
                           [&](const OpenBatch& other) { return other.able == able && other.memory == memory; });
  if (open == open_.end()) open = open_.insert(open_.end(), {able, memory, 0, {}});
  ++open->count;
  ++rows_;
  std::deque<WaitingRow>& rows = open->rows[row.priority];
  if (rows.empty() || rows.back().number < row.number) return rows.push_back(std::move(row));
  const auto place = std::upper_bound(rows.begin(), rows.end(), row, IsBefore);
  rows.insert(place, std::move(row));
}

std::vector<Router::Batch> RowQueue::OpenBatches() const {
  std::vector<const OpenBatch*> order;
  for (const OpenBatch& open : open_) order.push_back(&open);
  std::sort(order.begin(), order.end(),
            [](const OpenBatch* a, const OpenBatch* b) { return IsBefore(a->front(), b->front()); });
  std::vector<Router::Batch> batches;
  for (const OpenBatch* open : order) {
    const devices::DeviceRow& front = open->front().row.row;
    const Router::Needs needs = NeedsOf(front);
    batches.push_back({open->count, open->count * BytesOf(front), needs.vocabulary, open->memory, needs.features});
  }
  return batches;
}

std::optional<WaitingRow> RowQueue::TakeFor(const devices::DeviceDescription& device, uint32_t memory) {
  auto first = open_.end();
  for (auto open = open_.begin(); open != open_.end(); ++open) {
    if (open->memory != memory || !Router::CanTake(device, NeedsOf(open->front().row.row))) continue;
    if (first == open_.end() || IsBefore(open->front(), first->front())) first = open;
  }
  if (first == open_.end()) return std::nullopt;
  const auto rows = first->rows.begin();
  WaitingRow row = std::move(rows->second.front());
  rows->second.pop_front();
  if (rows->second.empty()) first->rows.erase(rows);
  if (--first->count == 0) open_.erase(first);
  --rows_;
  return row;
}

void RowQueue::EraseIf(const std::function<bool(WaitingRow&)>& is_out) {
  for (OpenBatch& open : open_) {
    for (auto& [priority, rows] : open.rows) {
      const auto erased = uint32_t(std::erase_if(rows, is_out));
      open.count -= erased;
      rows_ -= erased;
    }
    std::erase_if(open.rows, [](const auto& entry) { return entry.second.empty(); });
  }
  std::erase_if(open_, [](const OpenBatch& open) { return open.count == 0; });
}

}  // namespace sortition::service
