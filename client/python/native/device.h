// Rows in a CUDA device's memory that a server on the same device reads in place, and the steps that may name them.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/cpp/client.h"
#include "client/cpp/cuda_rows.h"
#include "client/python/native/tensor.h"

namespace sortition::python {

void BindDevice(nanobind::module_& module);

// sortition.CudaRows. Its memory lives as long as it, tensors that were made from it, and leases.
struct CudaRows {
  int device;
  std::shared_ptr<const client::CudaRows> rows;
};

// Memory that a client has been given, until it is closed and the last step is over that names rows there.
struct SharedRows {
  std::shared_ptr<const client::CudaRows> rows;  // outlive the memory
  std::shared_ptr<const client::Client::DeviceMemory> memory;
  bool is_closed = false;  // under the GIL
};

// sortition.DeviceMemory: closes the memory when it goes. Under the GIL.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::shared_ptr<SharedRows> rows) : rows_(std::move(rows)) {}
  DeviceMemory(DeviceMemory&&) = default;
  ~DeviceMemory() { Close(); }

  // Whether the client's stream in use shares the memory, and why not.
  absl::Status sharing() const;
  void Close();

 private:
  std::shared_ptr<SharedRows> rows_;  // null: closed
};

// What a client has been given. Under the GIL, which Share lets go of while the server is asked.
class SharedRowsTable {
 public:
  // Raises sortition.Error.
  DeviceMemory Share(std::shared_ptr<client::Client> client, const CudaRows& rows);
  // What keeps `rows`, and lets their stream be waited for; nothing if they are in the host's memory. `positions` as in
  // ReadRows. Raises TypeError if one lies on a device and not, or not as a whole, in memory that is shared.
  std::vector<std::shared_ptr<const SharedRows>> Find(const Rows& rows, const std::vector<size_t>& positions) const;

 private:
  // Null: it is in none.
  std::shared_ptr<const SharedRows> FindRow(const void* row, size_t bytes) const;

  std::vector<std::weak_ptr<const SharedRows>> shared_;
};

}  // namespace sortition::python
