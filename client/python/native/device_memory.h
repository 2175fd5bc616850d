// Rows in a CUDA device's memory that a server on the same device reads in place, and the steps that may name them.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/cpp/cuda/cuda_rows.h"
#include "client/python/native/tensor.h"
#include "sortition/client.h"

namespace sortition::python {

void BindDevice(nanobind::module_& module);

// sortition.CudaRows. Its memory lives as long as this object, the tensors made from it, and its registrations.
struct CudaRows {
  int device;
  std::shared_ptr<const client::CudaRows> rows;
};

// Memory registered with a client, until it is closed and the last step with rows there has ended.
struct SharedRows {
  std::shared_ptr<const client::CudaRows> rows;  // outlives `memory`
  std::shared_ptr<const client::Client::DeviceMemory> memory;
  bool is_closed = false;  // guarded by the GIL
};

// sortition.DeviceMemory: closes the memory when it is destroyed. Used under the GIL.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::shared_ptr<SharedRows> rows) : rows_(std::move(rows)) {}
  DeviceMemory(DeviceMemory&&) = default;
  ~DeviceMemory() { Close(); }

  // As in client::Client::DeviceMemory.
  absl::Status sharing() const;
  bool IsStated(uint32_t vocabulary_size, uint32_t element_bytes) const;
  void Close();

 private:
  std::shared_ptr<SharedRows> rows_;  // null: closed
};

// All memory registered with a client. Used under the GIL, which Share releases during its request to the server.
class SharedRowsTable {
 public:
  // Raises sortition.Error.
  DeviceMemory Share(std::shared_ptr<client::Client> client, const CudaRows& rows);
  // Returns the memory in which the rows lie, to keep it alive and to wait for its stream; nothing if they lie in the
  // host's memory. `positions` as in ReadRows. Raises TypeError if a row on a device is not entirely in such memory.
  std::vector<std::shared_ptr<const SharedRows>> Find(const Rows& rows, const std::vector<size_t>& positions) const;

 private:
  // Returns the memory that contains the row; null if there is none.
  std::shared_ptr<const SharedRows> FindRow(const void* row, size_t bytes) const;

  std::vector<std::weak_ptr<const SharedRows>> shared_;
};

}  // namespace sortition::python
