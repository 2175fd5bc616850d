// A word that a CUDA stream raises when it has written a batch's logits, so that the batch is stepped before
// (Batch::ready): the way to the server and all that is done there before a kernel go by while the GPU still computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/batch.h"
#include "client/cpp/cuda_rows.h"
#include "devices/cuda/context.h"
#include "devices/cuda/hardware.h"

namespace sortition::client {

// Belongs to one stream, whose writes are in order; works of several streams take several words. Not thread-safe.
class CudaReady {
 public:
  static constexpr uint64_t kBytes = 4096;  // of the memory: a page

  // `memory`, kBytes at a multiple of them, of Client::AllocateRows: shared with the server, where that is to look at
  // the word itself, and used for nothing else. `device` as CudaRows::Create has it, and the same errors.
  // FAILED_PRECONDITION: the device cannot write there.
  static absl::StatusOr<std::unique_ptr<CudaReady>> Create(int device, std::shared_ptr<std::byte> memory);
  static absl::StatusOr<std::unique_ptr<CudaReady>> CreateOn(const devices::cuda::Api& api,
                                                             const devices::cuda::Hardware& hardware,
                                                             std::shared_ptr<std::byte> memory);
  // Blocks until the device has done all work of its primary context, some of which may write the word.
  ~CudaReady();
  CudaReady(const CudaReady&) = delete;
  CudaReady& operator=(const CudaReady&) = delete;

  // For a batch whose logits are written by the work that the stream, of the device's primary context, has by now
  // (null: the default stream). Does not wait. FAILED_PRECONDITION: the stream captures a graph, which would write the
  // same value each time; UNAVAILABLE: the device is lost to this process.
  absl::StatusOr<ReadyWord> Raise(CUstream_st* stream);

 private:
  CudaReady(const devices::cuda::Api& api, const devices::cuda::Hardware& hardware, std::shared_ptr<std::byte> memory);
  absl::Status Open();

  const devices::cuda::Api api_;
  const devices::cuda::Hardware hardware_;
  const std::shared_ptr<std::byte> memory_;
  devices::cuda::ContextHandle context_ = nullptr;
  bool is_registered_ = false;
  devices::cuda::DevicePointer address_ = 0;  // of the word, as the device has it
  uint32_t value_ = 0;                        // that was raised last
};

}  // namespace sortition::client
