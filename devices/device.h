// The interface every device stands behind: memory, queues and errors, no sampling mathematics.
//
// A device gets one virtual call per batch. It answers every row of the batch exactly once, in order, with the bits the
// law prescribes; which device answered can never be told from the answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
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

// As it came from the wire. A row is the concatenation of its segments.
using kernels::ByteSegment;

struct DeviceRow {
  // `request.logits` is ignored; the row is that of `segments`.
  kernels::RowRequest request;
  absl::InlinedVector<ByteSegment, 2> segments;
  uint32_t memory = kHostMemory;             // where the segments lie
  const ImportedMemory* imported = nullptr;  // the same, if another process made it: one segment, of its addresses
  // Another process may write to the segments meanwhile: the device reads each byte of them once, and computes with
  // what it has read. Of a row that is changed while it is read any answer is right that some mixture has.
  bool may_change = false;
};

struct BatchOutput {
  // One answer per row, in the batch's order, if status is OK; otherwise empty, and no row was answered.
  absl::Status status;
  std::vector<kernels::RowOutput> outputs;
  uint64_t kernel_nanoseconds = 0;  // time the device spent on the batch, queueing excluded
};

struct DeviceDescription {
  std::string name;      // "cpu0"
  std::string kind;      // "cpu", "vulkan", "cuda"
  std::string hardware;  // as its driver names it
  uint32_t max_batch_rows = 0;
  uint32_t max_vocabulary = kernels::kMaxVocabulary;  // live tokens of a row
  uint32_t memory = kHostMemory;                      // the memory it computes in; other devices may share it
  MemoryIdentity identity = {};                       // of that memory, as other processes name it
  uint32_t batches_in_flight = 1;                     // how many batches it takes before it has work waiting
  kernels::Features features = kernels::kNoFeatures;  // what its kernels have; it is given no row that asks for more
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
  // refer to stay alive and unchanged until `done` has been called. `done` is called exactly once, on a thread of the
  // device's, and must not block for long; it may call Submit.
  virtual void Submit(std::vector<DeviceRow> rows, Done done) = 0;

  // Memory of the device that another process passed on, for rows to lie in. UNIMPLEMENTED where the device takes none
  // of the handle's kind; INVALID_ARGUMENT for what its driver does not know as such memory. Blocks for as long as the
  // driver takes to map it. Thread-safe. The memory may outlive the device, and batches with rows in it may not.
  virtual absl::StatusOr<std::shared_ptr<const ImportedMemory>> Import(const MemoryHandle& handle);

 protected:
  Device() = default;
};

inline absl::StatusOr<std::shared_ptr<const ImportedMemory>> Device::Import(const MemoryHandle&) {
  return absl::UnimplementedError("the device takes no memory of other processes");
}

}  // namespace sortition::devices
