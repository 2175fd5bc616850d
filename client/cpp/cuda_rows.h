// Memory of a CUDA device for rows that a server on the same device reads where they lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/device_rows.h"
#include "devices/cuda/virtual_memory.h"
#include "devices/imported_memory.h"
#include "service/memory/descriptor.h"

namespace sortition::client {

// An allocation of the caller's own, mapped for reading and writing in the device's primary context, which CUDA's
// runtime uses, too. It is passed to servers as a file descriptor.
//
// An engine has its last layer write the logits here, or copies them here within the device; memory of its own
// allocator, such as a framework's tensors, cannot be passed on. What a step names must be there before the step is
// sent: the stream that writes it has been waited for (WaitFor). It stays as it is until the step is answered; what is
// changed meanwhile is answered as some mixture of both.
//
// Thread-safe; Read excepts what is written meanwhile. The memory itself lives until the server, too, has let go of it.
class CudaRows {
 public:
  // At least `bytes` on the device of that number in the driver's order; as many as the driver's granularity, mostly 2
  // MiB, makes of them. Blocks while the driver starts. NOT_FOUND: no driver, no such device; UNIMPLEMENTED: the device
  // does not share memory; RESOURCE_EXHAUSTED: it has not as much left.
  static absl::StatusOr<std::unique_ptr<CudaRows>> Create(int device, uint64_t bytes);
  static absl::StatusOr<std::unique_ptr<CudaRows>> CreateOn(const devices::cuda::Api& api,
                                                            const devices::cuda::Hardware& hardware, uint64_t bytes);
  // Blocks until the device has done all work of its primary context, some of which may use the memory.
  ~CudaRows();
  CudaRows(const CudaRows&) = delete;
  CudaRows& operator=(const CudaRows&) = delete;

  // The device's address; nothing on the host is there.
  void* data() const;
  uint64_t bytes() const { return bytes_; }
  // The descriptor stays this object's.
  devices::MemoryHandle handle() const;
  devices::MemoryIdentity identity() const { return devices::cuda::IdentityOf(hardware_); }
  // For Client::ShareDevice, whose memory this outlives.
  DeviceRows rows() const;

  // Copies `to.size()` bytes from `offset` on to the host, for a server that does not take the memory; once the work is
  // done that the device's default stream has. Blocks. OUT_OF_RANGE: they are not all here.
  absl::Status Read(uint64_t offset, std::span<std::byte> to) const;

  // Blocks until the work is done that a stream of the device's primary context has by now (null: the default stream).
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
