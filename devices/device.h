// The interface of all devices: memory, queues and errors, no sampling mathematics.
//
// A device gets one virtual call per batch. It answers every row of the batch exactly once, in order, with the bits
// that the law prescribes; so outputs do not depend on which device computed them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "devices/imported_memory.h"
#include "kernels/byte_segment.h"
#include "kernels/features.h"
#include "kernels/row.h"

namespace sortition::devices {

// A row's bytes as they were received: the concatenation of its segments.
using kernels::ByteSegment;

struct DeviceRow {
  // `request.logits` is ignored; the logits are in `segments`.
  kernels::RowRequest request;
  absl::InlinedVector<ByteSegment, 2> segments;
  uint32_t memory = kHostMemory;             // where the segments lie
  const ImportedMemory* imported = nullptr;  // that memory, if another process allocated it; one segment
  // Another process may write to the segments meanwhile: the device computes with a copy. For a row that changes while
  // it is read, the output of any mixture of the two is right.
  bool may_change = false;
};

struct BatchOutput {
  // If status is OK: one output per row, in the batch's order. Otherwise empty, and no row was answered.
  absl::Status status;
  std::vector<kernels::RowOutput> outputs;
  uint64_t kernel_nanoseconds = 0;  // time on the device, without queueing
};

struct DeviceDescription {
  std::string name;      // "cpu0"
  std::string kind;      // "cpu", "vulkan", "cuda"
  std::string hardware;  // as its driver names it
  uint32_t max_batch_rows = 0;
  uint32_t max_vocabulary = kernels::kMaxVocabulary;  // live tokens of a row
  uint32_t memory = kHostMemory;                      // the memory it computes in; devices may share one
  MemoryIdentity identity = {};                       // of that memory, for other processes
  uint32_t batches_in_flight = 1;                     // batches that keep it busy
  kernels::Features features = kernels::kNoFeatures;  // its kernels'; it gets no row that needs others
};

class Device {
 public:
  using Done = absl::AnyInvocable<void(BatchOutput)>;

  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Constant over the device's life. Thread-safe.
  virtual const DeviceDescription& description() const = 0;

  // Starts a batch of 1 to max_batch_rows rows and returns without waiting for it. Thread-safe. `rows` and all they
  // refer to must stay alive and unchanged until `done` has been called. `done` is called exactly once, on a thread of
  // the device, and must not block for long; it may call Submit.
  virtual void Submit(std::vector<DeviceRow> rows, Done done) = 0;
  // As Submit, but a device whose kernels can run on any thread runs the batch on the caller's, and calls `done` there
  // before this returns. That saves the wake-up of another thread, and a copy of the rows.
  virtual void RunHere(std::span<const DeviceRow* const> rows, Done done);

  // Maps device memory that another process shares, so that rows can lie in it. UNIMPLEMENTED if the device takes no
  // handles of this kind; INVALID_ARGUMENT if its driver does not know the memory. Blocks for as long as the driver
  // takes to map it. Thread-safe. The memory may outlive the device; batches with rows in it may not.
  virtual absl::StatusOr<std::shared_ptr<const ImportedMemory>> Import(const MemoryHandle& handle);

 protected:
  Device() = default;
};

// Returns copies of a batch's rows, for Device::Submit.
inline std::vector<DeviceRow> CopyRows(std::span<const DeviceRow* const> rows) {
  std::vector<DeviceRow> copies;
  copies.reserve(rows.size());
  for (const DeviceRow* const row : rows) copies.push_back(*row);
  return copies;
}

inline void Device::RunHere(std::span<const DeviceRow* const> rows, Done done) {
  Submit(CopyRows(rows), std::move(done));
}

inline absl::StatusOr<std::shared_ptr<const ImportedMemory>> Device::Import(const MemoryHandle&) {
  return absl::UnimplementedError("the device takes no memory of other processes");
}

}  // namespace sortition::devices
