// A word that a CUDA stream raises when it has written a batch's logits (Batch::ready). The batch can then be stepped
// earlier, so that the message's way and the server's work before the kernel overlap with the GPU's computation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/cuda/cuda_rows.h"
#include "devices/cuda/context.h"
#include "devices/cuda/hardware.h"
#include "sortition/batch.h"

namespace sortition::client {

// Belongs to one stream, whose writes are in order; each stream takes its own word. Not thread-safe.
class CudaReady {
 public:
  static constexpr uint64_t kBytes = 4096;  // size of the memory: a page

  // `memory`: kBytes from Client::AllocateRows, aligned to kBytes, with no other use. Shared with the server if the
  // server reads the word itself. `device` and errors as for CudaRows::Create, and FAILED_PRECONDITION if the device
  // cannot write there.
  static absl::StatusOr<std::unique_ptr<CudaReady>> Create(int device, std::shared_ptr<std::byte> memory);
  static absl::StatusOr<std::unique_ptr<CudaReady>> CreateOn(const devices::cuda::Api& api,
                                                             const devices::cuda::Hardware& hardware,
                                                             std::shared_ptr<std::byte> memory);
  // Blocks until the device has done all work of its primary context, some of which may write the word.
  ~CudaReady();
  CudaReady(const CudaReady&) = delete;
  CudaReady& operator=(const CudaReady&) = delete;

  // Returns the word for a batch whose logits are written by the work queued on `stream` so far. The stream belongs to
  // the device's primary context; null is the default stream. Does not block. FAILED_PRECONDITION: the stream captures
  // a graph, which would write the same value each time; UNAVAILABLE: the device is lost to this process.
  absl::StatusOr<ReadyWord> Raise(CUstream_st* stream);

 private:
  CudaReady(const devices::cuda::Api& api, const devices::cuda::Hardware& hardware, std::shared_ptr<std::byte> memory);
  absl::Status Open();

  const devices::cuda::Api api_;
  const devices::cuda::Hardware hardware_;
  const std::shared_ptr<std::byte> memory_;
  devices::cuda::ContextHandle context_ = nullptr;
  bool is_registered_ = false;
  devices::cuda::DevicePointer address_ = 0;  // the word's address on the device
  uint32_t value_ = 0;                        // raised last
};

}  // namespace sortition::client
