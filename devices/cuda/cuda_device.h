// A CUDA device: one thread for each batch in flight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "devices/batch_threads.h"
#include "devices/cuda/context.h"
#include "devices/cuda/lane.h"
#include "devices/device.h"
#include "kernels/cuda/image.h"

namespace sortition::devices {

struct CudaDeviceOptions {
  std::string name = "cuda0";
  uint32_t max_batch_rows = 1024;
  uint32_t batches_in_flight = 2;
  uint64_t max_batch_bytes = 512 << 20;  // of device memory; a batch that needs more runs in chunks
  uint32_t memory = kHostMemory;         // DeviceDescription::memory; kHostMemory: it imports none
  kernels::cuda::Images images = kernels::cuda::CompiledImages();
  // Called once, on a thread of the device, when this process has lost the device; only a new process can use it again.
  std::function<void(const absl::Status&)> lost = nullptr;
};

// Thread-safe. A batch that ends with an error changes nothing. UNAVAILABLE means that this process has lost the
// device: all batches in flight end so, and all later ones at once.
//
// Destruction as for BatchThreads.
class CudaDevice final : public Device {
 public:
  // Blocks for as long as the driver takes to load the kernels. The error names the call that failed.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Start(const cuda::Api& api, const cuda::Hardware& hardware,
                                                           const CudaDeviceOptions& options);

  const DeviceDescription& description() const override { return description_; }
  void Submit(std::vector<DeviceRow> rows, Done done) override;
  absl::StatusOr<std::shared_ptr<const ImportedMemory>> Import(const MemoryHandle& handle) override;

 private:
  CudaDevice(const cuda::Hardware& hardware, const CudaDeviceOptions& options);
  absl::Status Open(const cuda::Api& api, const cuda::Hardware& hardware);
  BatchOutput Run(cuda::Lane* lane, const std::vector<DeviceRow>& rows) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status AskAfter(absl::Status status) const;
  absl::Status LostOr(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);

  const CudaDeviceOptions options_;
  DeviceDescription description_;
  std::shared_ptr<cuda::Context> context_;
  std::vector<std::unique_ptr<cuda::Lane>> lanes_;
  absl::Mutex mutex_;
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
  BatchThreads threads_;  // destroyed first
};

}  // namespace sortition::devices
