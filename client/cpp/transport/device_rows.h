// Rows in device memory of this process, which a server on this machine may read in place, and which the device may
// state in compact form for other servers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "devices/imported_memory.h"
#include "kernels/compact_row.h"
#include "kernels/row.h"

namespace sortition::client {

// Rows of device memory that are to be stated in compact form.
struct RowsToState {
  uint64_t offset = 0;     // of the first one in the allocation
  uint64_t row_bytes = 0;  // from one row to the next
  kernels::DType dtype = kernels::DType::kF32;
  uint32_t vocabulary = 0;                         // live tokens of each
  std::vector<kernels::RowParameters> parameters;  // of each row
  uint32_t count = 0;                              // first tokens of each
  bool sums = false;                               // both sums are stated
};

// An allocation of the caller that its driver can export as a descriptor (devices::MemoryKind). CudaRows makes such
// memory with CUDA.
struct DeviceRows {
  devices::MemoryIdentity identity;  // of the device
  devices::MemoryHandle handle;      // its descriptor stays open for as long as the memory is shared
  const std::byte* data = nullptr;   // rows are addresses from here; no other memory of the process has these addresses
  uint64_t bytes = 0;                // size of the allocation from `data`; at most handle.bytes
  // Copies bytes at an offset to the host, for servers that cannot read them in place. Blocks; thread-safe.
  std::function<absl::Status(uint64_t offset, std::span<std::byte> to)> read;
  // States rows on the device, for servers that take compact rows; null: the device states none. An absent element: the
  // row fails with these logits. An error: no row is stated. Blocks; thread-safe.
  std::function<absl::StatusOr<std::vector<std::optional<kernels::StatedRow>>>(const RowsToState& rows)> state =
      nullptr;
};

// All device memory of a client. Not thread-safe.
class DeviceRowsTable {
 public:
  // False if some of these addresses are registered.
  bool Add(std::shared_ptr<const DeviceRows> rows) {
    const std::byte* const data = rows->data;
    const auto after = rows_.upper_bound(data);
    if (after != rows_.end() && after->first < data + rows->bytes) return false;
    if (Find(data) != nullptr) return false;
    rows_.emplace(data, std::move(rows));
    return true;
  }
  void Remove(const DeviceRows& rows) { rows_.erase(rows.data); }
  std::vector<std::shared_ptr<const DeviceRows>> all() const {
    std::vector<std::shared_ptr<const DeviceRows>> all;
    for (const auto& [data, rows] : rows_) all.push_back(rows);
    return all;
  }
  // Returns the memory with this address; null if there is none.
  std::shared_ptr<const DeviceRows> Find(const void* row) const {
    if (rows_.empty()) return nullptr;
    const auto after = rows_.upper_bound(static_cast<const std::byte*>(row));
    if (after == rows_.begin()) return nullptr;
    const std::shared_ptr<const DeviceRows>& before = std::prev(after)->second;
    return static_cast<const std::byte*>(row) < before->data + before->bytes ? before : nullptr;
  }

 private:
  std::map<const std::byte*, std::shared_ptr<const DeviceRows>> rows_;  // by address
};

}  // namespace sortition::client
