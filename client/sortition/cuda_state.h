// The state of a CudaSampler: the requests of each row on the host, and the layout of the device's memory.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/sortition/sampler.h"
#include "devices/cuda/context.h"
#include "kernels/cuda/input.h"
#include "kernels/cuda/layout.h"

namespace sortition {

inline devices::cuda::DevicePointer AddressOf(const void* pointer) {
  return reinterpret_cast<devices::cuda::DevicePointer>(pointer);
}
template <typename T>
T* PointerTo(devices::cuda::DevicePointer address) {
  return reinterpret_cast<T*>(address);
}

// Implements the functions of CudaSampler.
struct CudaSampler::State {
  // Makes a state. Several samplers may share a context.
  static absl::StatusOr<std::unique_ptr<State>> Create(std::shared_ptr<devices::cuda::Context> context,
                                                       const CudaLimits& limits);
  ~State();

  absl::Status Bind(const CudaBatch& batch);
  absl::Status SetRow(uint32_t row, const kernels::RowParameters& parameters, const kernels::NoiseKey& noise);
  absl::Status SetTask(uint32_t row, kernels::RowTask task);
  absl::Status SetSamplerState(uint32_t row, uint64_t state);
  absl::Status SetEdits(uint32_t row, std::span<const kernels::LogitEdit> edits);
  absl::Status ChangeEdits(uint32_t row, std::span<const kernels::LogitEdit> changes);
  absl::Status Upload(CUstream_st* stream);
  absl::Status Sample(CUstream_st* stream);
  absl::Status Download(CUstream_st* stream, std::span<kernels::RowOutput> outputs);

 private:
  // Pinned memory of an upload, which may be written again after the event `done`.
  struct Stage {
    std::byte* memory = nullptr;
    devices::cuda::EventHandle done = nullptr;
  };
  struct Row {
    kernels::RowParameters parameters;
    kernels::NoiseKey noise;
    std::vector<kernels::LogitEdit> edits;    // as set, without edits that change nothing
    std::vector<kernels::LogitEdit> changes;  // since the last upload; empty if the whole list is new
    bool is_list_new = false;
    uint32_t edits_there = 0;  // number of edits on the device, in half `half` of the row's two
    uint32_t half = 0;
    kernels::RowTask task = kernels::RowTask::kDraw;
    uint64_t sampler_state = 0;
    bool is_set = false;
    bool has_new_state = false;

    bool has_new_edits() const { return is_list_new || !changes.empty(); }
  };

  State(std::shared_ptr<devices::cuda::Context> context, const CudaLimits& limits);
  absl::Status Open();
  absl::Status CheckOnDevice(const void* pointer, const char* name) const;
  absl::Status CheckStream(CUstream_st* stream, bool may_capture) const;
  absl::Status CheckRow(uint32_t row) const;
  absl::Status CheckRows() const;  // checks that all rows of the batch are set
  absl::Status CheckEdits(uint32_t row, std::span<const kernels::LogitEdit> edits, const char* name) const;
  bool IsChained(uint32_t row) const;
  kernels::cuda::RowInput InputOf(uint32_t row) const;
  kernels::cuda::ChainedInput ChainedInputOf(uint32_t row) const;
  // Returns device addresses, in the sampler's memory or the caller's.
  devices::cuda::DevicePointer OutputsAddress() const;
  devices::cuda::DevicePointer TopsAddress(bool raw) const;
  // Queues a copy of a stage's bytes to the same offset in the device's memory.
  absl::Status Move(const Stage& stage, uint64_t offset, uint64_t bytes, CUstream_st* stream) const;
  // Queues a copy of the changed edits, and the kernel that merges them into the edits on the device.
  absl::Status MoveEdits(const Stage& stage, CUstream_st* stream);
  const devices::cuda::Api& api() const { return context_->api(); }

  // Layout of the device's memory, which is one allocation. First, laid out as a stage: inputs, merges and their
  // changes (adjacent, as many as there are), chained inputs, sampler states. Then: rows' states, scratch, two halves
  // of edits (a merge reads one and writes the other), outputs, chained outputs, kept tokens, first tokens of the raw
  // and of the processed distributions. Offsets are in bytes.
  uint64_t MergesOffset() const { return uint64_t{sizeof(kernels::cuda::RowInput)} * limits_.rows; }
  uint64_t RowEditsBytes() const { return uint64_t{sizeof(kernels::LogitEdit)} * limits_.edits; }
  uint64_t ChainedOffset() const {
    return MergesOffset() + (sizeof(kernels::cuda::EditMerge) + RowEditsBytes()) * limits_.rows;
  }
  uint64_t SamplerStatesOffset() const {
    return ChainedOffset() + uint64_t{sizeof(kernels::cuda::ChainedInput)} * limits_.rows;
  }
  uint64_t StatesOffset() const { return SamplerStatesOffset() + sizeof(uint64_t) * limits_.rows; }
  uint64_t ScratchOffset() const { return StatesOffset() + uint64_t{sizeof(kernels::cuda::RowState)} * limits_.rows; }
  uint64_t ScratchBytes() const;  // of a row
  uint64_t EditsOffset() const { return ScratchOffset() + ScratchBytes() * limits_.rows; }
  devices::cuda::DevicePointer EditsAddress(uint32_t row, uint32_t half) const {
    return memory_ + EditsOffset() + RowEditsBytes() * (2 * uint64_t{row} + half);
  }
  uint64_t OutputsOffset() const { return EditsOffset() + 2 * RowEditsBytes() * limits_.rows; }
  uint64_t ChainedOutputsOffset() const {
    return OutputsOffset() + uint64_t{sizeof(kernels::cuda::RawOutput)} * limits_.rows;
  }
  uint64_t KeptOffset() const {
    return ChainedOutputsOffset() + uint64_t{sizeof(kernels::cuda::ChainedOutput)} * limits_.rows;
  }
  uint64_t KeptBytes() const { return uint64_t{sizeof(kernels::TokenBits)} * limits_.kept; }  // of a row
  uint64_t TopsOffset() const { return KeptOffset() + KeptBytes() * limits_.rows; }
  uint64_t TopsBytes() const { return uint64_t{sizeof(kernels::cuda::TopToken)} * limits_.top; }  // of a distribution
  uint64_t Bytes() const { return TopsOffset() + 2 * TopsBytes() * limits_.rows; }

  const std::shared_ptr<devices::cuda::Context> context_;
  const CudaLimits limits_;
  devices::cuda::DevicePointer memory_ = 0;
  std::array<Stage, 4> stages_;
  size_t next_stage_ = 0;
  CudaBatch batch_;
  std::vector<Row> rows_;
  bool is_uploaded_ = false;
  kernels::cuda::LaterKernels needed_;  // as uploaded
};

}  // namespace sortition
