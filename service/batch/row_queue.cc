// Open batches are few, so they are searched linearly.
#include "service/batch/row_queue.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"

namespace sortition::service {

RowQueue::RowQueue(std::vector<const devices::Device*> devices)
    : devices_(std::move(devices)), passed_(devices_.size()) {
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

Router::BatchSummary RowQueue::OpenBatch::Whole() const {
  const WaitingRow& first = front();
  return {count, count * BytesOf(first.row->row), first.needs.vocabulary, memory, first.needs.features};
}

std::vector<Router::BatchSummary> RowQueue::OpenBatches() const {
  std::vector<const OpenBatch*> order;
  for (const OpenBatch& open : open_) order.push_back(&open);
  std::sort(order.begin(), order.end(),
            [](const OpenBatch* a, const OpenBatch* b) { return IsBefore(a->front(), b->front()); });
  for (size_t device = 0; device < devices_.size(); ++device) {
    const std::optional<Level> oldest = TurnOfOldest(device);
    if (!oldest) continue;
    std::ranges::stable_partition(order, [&](const OpenBatch* open) { return open == &open_[oldest->open]; });
  }
  std::vector<Router::BatchSummary> batches;
  for (const OpenBatch* open : order) batches.push_back(open->Whole());
  return batches;
}

std::optional<WaitingRow> RowQueue::TakeFor(const devices::DeviceDescription& device, uint32_t memory) {
  const auto known =
      std::ranges::find_if(devices_, [&](const auto* other) { return &other->description() == &device; });
  SORTITION_CHECK(known != devices_.end());
  const auto index = static_cast<size_t>(known - devices_.begin());
  std::optional<Level> level = TurnOfOldest(index);
  const bool is_turn = level && open_[level->open].memory == memory;
  if (!is_turn) level = FirstLevel(index, memory);
  if (!level) return std::nullopt;
  const auto open = open_.begin() + static_cast<std::ptrdiff_t>(level->open);
  const auto rows = open->rows.find(level->priority);
  std::optional<WaitingRow> row = rows->second.Take();
  if (rows->second.empty()) open->rows.erase(rows);
  if (--open->count == 0) open_.erase(open);
  --rows_;
  if (is_turn) {
    passed_[index] = 0;
  } else {
    CountTurn(index, level->priority);
  }
  return row;
}

std::optional<RowQueue::Level> RowQueue::TurnOfOldest(size_t device) const {
  if (passed_[device] + 1 < kTurnOfOldest) return std::nullopt;
  std::optional<Level> oldest;
  uint64_t number = 0;
  for (size_t i = 0; i < open_.size(); ++i) {
    if ((open_[i].able >> device & 1) == 0) continue;
    for (const auto& [priority, rows] : open_[i].rows) {
      if (oldest && rows.front().number > number) continue;
      oldest = Level{i, priority};
      number = rows.front().number;
    }
  }
  return oldest;
}

std::optional<RowQueue::Level> RowQueue::FirstLevel(size_t device, uint32_t memory) const {
  std::optional<size_t> first;
  for (size_t i = 0; i < open_.size(); ++i) {
    if (open_[i].memory != memory || (open_[i].able >> device & 1) == 0) continue;
    if (!first || IsBefore(open_[i].front(), open_[*first].front())) first = i;
  }
  if (!first) return std::nullopt;
  return Level{*first, open_[*first].rows.begin()->first};
}

void RowQueue::CountTurn(size_t device, int32_t priority) {
  const auto waits = [&](const OpenBatch& open) {
    return (open.able >> device & 1) != 0 && open.rows.rbegin()->first < priority;
  };
  passed_[device] += std::ranges::any_of(open_, waits);
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
  double higher = 0;
  double before = 0;
  for (const auto& [other, queue] : open->rows) {
    const Standing standing = queue.StandingOf(owner);
    all += double(standing.all.work);
    if (other > priority) higher += double(standing.all.work);
    if (other == priority) before = standing.WorkAhead();
  }
  // Older rows below the highest priority have their turns before this one has its own.
  const auto highest = double(open->rows.begin()->second.StandingOf(owner).all.work);
  before += std::min(higher, kTurnOfOldest * (all - highest + double(WorkOf(row))));
  return {open->Whole(), before / all};
}

}  // namespace sortition::service
