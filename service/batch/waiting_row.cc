// Owners, sizes and copies of rows.
#include "service/batch/waiting_row.h"

#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"

namespace sortition::service {

QueueOwner NextOwner(const std::string& tenant) {
  static std::atomic<uint64_t> next = 1;
  return {absl::HashOf(tenant), next.fetch_add(1, std::memory_order_relaxed)};
}

QueueOwner OwnerOfCalls(const std::string& tenant) { return {absl::HashOf(tenant), 0}; }

uint64_t BytesOf(const devices::DeviceRow& row) {
  return uint64_t{row.request.live_vocabulary} * kernels::ElementBytes(row.request.dtype);
}

absl::Status TakeCopy(WaitingRow* waiting) {
  devices::DeviceRow& row = waiting->row->row;
  uint64_t bytes = 0;
  for (const devices::ByteSegment& segment : row.segments) bytes += segment.size;
  auto copy = std::make_shared<std::vector<std::byte>>(bytes);
  if (const devices::ImportedMemory* const imported = row.imported) {
    const auto offset = static_cast<uint64_t>(row.segments.front().data - imported->bytes().data());
    if (absl::Status status = imported->Read(offset, *copy); !status.ok()) return status;
  } else {
    std::byte* to = copy->data();
    for (const devices::ByteSegment& segment : row.segments) {
      std::memcpy(to, segment.data, segment.size);
      to += segment.size;
    }
  }
  row.segments = {{copy->data(), copy->size()}};
  row.memory = devices::kHostMemory;
  row.imported = nullptr;
  row.may_change = false;
  waiting->copy = std::move(copy);
  return absl::OkStatus();
}

Router::Needs NeedsOf(const devices::DeviceRow& row) {
  return {row.request.live_vocabulary, kernels::FeaturesOf(row.request)};
}

std::optional<Router::BatchSummary> WholeIfAlike(const std::vector<QueuedRow>& rows) {
  const devices::DeviceRow& first = rows.front().row;
  const Router::Needs needs = NeedsOf(first);
  for (const QueuedRow& row : rows) {
    if (row.row.memory != first.memory || NeedsOf(row.row) != needs) return std::nullopt;
  }
  const auto count = static_cast<uint32_t>(rows.size());
  return Router::BatchSummary{count, count * BytesOf(first), needs.vocabulary, first.memory, needs.features};
}

}  // namespace sortition::service
