// The memory of a CudaProducer: a sampler that describes rows, and where its descriptions go.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/sortition/cuda_state.h"
#include "client/sortition/sampler.h"
#include "devices/cuda/context.h"

namespace sortition {

// Implements the functions of CudaProducer.
struct CudaProducer::Memory {
  static absl::StatusOr<std::unique_ptr<Memory>> Create(std::shared_ptr<devices::cuda::Context> context,
                                                        const CudaProducerLimits& limits);
  ~Memory();

  absl::Status State(CUstream_st* stream, const CudaLogits& logits, std::span<const kernels::RowParameters> parameters,
                     bool sums);
  absl::Status Take(uint32_t row, kernels::StatedRow* stated, bool* fails) const;

 private:
  // The sums that a row states.
  struct Asked {
    bool sums = false;
    bool own_sum = false;
  };

  Memory(std::shared_ptr<devices::cuda::Context> context, const CudaProducerLimits& limits)
      : context_(std::move(context)), limits_(limits) {}
  absl::Status Open();
  // One token more than the first shows whether the list is whole.
  uint32_t tops() const { return limits_.first + 1; }
  // Layout on the device and on the host: outputs, then first tokens of the raw, then of the processed distributions.
  uint64_t TopsOffset() const { return uint64_t{sizeof(kernels::cuda::RawOutput)} * limits_.rows; }
  uint64_t TopsBytes() const { return uint64_t{sizeof(kernels::cuda::TopToken)} * tops(); }  // of a row
  uint64_t ProcessedOffset() const { return TopsOffset() + TopsBytes() * limits_.rows; }
  uint64_t Bytes() const { return ProcessedOffset() + TopsBytes() * limits_.rows; }
  // Only on the device: drawn tokens follow, which are not read.
  uint64_t TokensBytes() const { return uint64_t{sizeof(int32_t)} * limits_.rows; }

  const std::shared_ptr<devices::cuda::Context> context_;
  const CudaProducerLimits limits_;
  std::unique_ptr<CudaSampler::State> sampler_;
  devices::cuda::DevicePointer device_ = 0;
  std::byte* pinned_ = nullptr;
  std::vector<Asked> asked_;  // one for each row of the last statement
};

}  // namespace sortition
