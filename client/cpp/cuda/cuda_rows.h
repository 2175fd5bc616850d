// Memory of a CUDA device for rows that a server on the same device reads in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/transport/device_rows.h"
#include "devices/cuda/virtual_memory.h"
#include "devices/imported_memory.h"
#include "service/memory/descriptor.h"

namespace sortition::client {

// An allocation that is mapped for reading and writing in the device's primary context, which CUDA's runtime uses, too.
// It is passed to servers as a file descriptor.
//
// An engine's last layer writes the logits here, or the engine copies them here within the device. Memory of other
// allocators, such as a framework's tensors, cannot be passed on. The logits that a step names must be complete before
// the step is sent: wait for the stream that writes them (WaitFor). They must not change until the step is answered;
// otherwise the result belongs to some mixture of both.
//
// Thread-safe, except that bytes must not be read (Read) while they are written. The memory lives until the server too
// has released it.
class CudaRows {
 public:
  // Allocates `bytes`, rounded up to the driver's granularity (mostly 2 MiB), on device number `device` in the driver's
  // order. Blocks while the driver starts. NOT_FOUND: no driver or no such device; UNIMPLEMENTED: the device does not
  // share memory; RESOURCE_EXHAUSTED: the device has too little free memory.
  static absl::StatusOr<std::unique_ptr<CudaRows>> Create(int device, uint64_t bytes);
  static absl::StatusOr<std::unique_ptr<CudaRows>> CreateOn(const devices::cuda::Api& api,
                                                            const devices::cuda::Hardware& hardware, uint64_t bytes);
  // Blocks until the device has done all work of its primary context, some of which may use the memory.
  ~CudaRows();
  CudaRows(const CudaRows&) = delete;
  CudaRows& operator=(const CudaRows&) = delete;

  // Returns the address on the device. It is no address of the host.
  void* data() const;
  uint64_t bytes() const { return bytes_; }
  // The descriptor stays owned by this object.
  devices::MemoryHandle handle() const;
  devices::MemoryIdentity identity() const { return devices::cuda::IdentityOf(hardware_); }
  const devices::cuda::Api& api() const { return api_; }
  const devices::cuda::Hardware& hardware() const { return hardware_; }
  // Returns the argument of Client::ShareDevice. This object must outlive the shared memory.
  DeviceRows rows() const;

  // Copies `to.size()` bytes at `offset` to the host, after the work queued on the device's default stream. For servers
  // that do not take the memory. Blocks. OUT_OF_RANGE if they exceed the allocation.
  absl::Status Read(uint64_t offset, std::span<std::byte> to) const;

  // Blocks until the work queued on a stream of the device's primary context (null: the default stream) is done.
  // FAILED_PRECONDITION: it captures a graph; UNAVAILABLE: the device is lost to this process.
  absl::Status WaitFor(CUstream_st* stream) const;

 private:
  CudaRows(const devices::cuda::Api& api, const devices::cuda::Hardware& hardware) : api_(api), hardware_(hardware) {}
  absl::Status Open(uint64_t bytes);

  const devices::cuda::Api api_;
  const devices::cuda::Hardware hardware_;
  devices::cuda::ContextHandle context_ = nullptr;
  std::unique_ptr<devices::cuda::Mapping> mapping_;
  service::Descriptor descriptor_;
  uint64_t bytes_ = 0;
};

}  // namespace sortition::client
