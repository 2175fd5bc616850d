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

inline devices::cuda::DevicePointer ToDevicePointer(const void* pointer) {
  return reinterpret_cast<devices::cuda::DevicePointer>(pointer);
}
template <typename T>
T* PointerTo(devices::cuda::DevicePointer address) {
  return reinterpret_cast<T*>(address);
}

// Implements the functions of CudaSampler.
struct CudaSampler::State {
  // Makes a state. Several samplers may share a context. `takes_null_stream`: its work may be in the null stream, where
  // some hosts have theirs.
  static absl::StatusOr<std::unique_ptr<State>> Create(std::shared_ptr<devices::cuda::Context> context,
                                                       const CudaLimits& limits, bool takes_null_stream = false);
  ~State();

  absl::Status Bind(const CudaBatch& batch, std::span<const uint32_t> rows = {});
  absl::Status SetRow(uint32_t row, const kernels::RowParameters& parameters, const kernels::NoiseKey& noise);
  absl::Status SetTask(uint32_t row, kernels::RowTask task);
  absl::Status SetSamplerState(uint32_t row, uint64_t state);
  absl::Status SetEdits(uint32_t row, std::span<const kernels::LogitEdit> edits);
  absl::Status SetSequence(uint32_t row, const law::SamplingParameters& parameters, std::span<const TokenCount> counts);
  absl::Status Upload(CUstream_st* stream);
  // Returns whether Sample needs no Upload first.
  bool is_uploaded() const { return is_uploaded_; }
  absl::Status Sample(CUstream_st* stream);
  // Returns an error for the null stream unless it is taken, and for one that captures a graph unless it may.
  absl::Status CheckStream(CUstream_st* stream, bool may_capture) const;
  absl::Status Fetch(CUstream_st* stream, CudaTicket* ticket);
  absl::Status Await(CudaTicket ticket, std::vector<kernels::RowOutput>* outputs);
  // Returns the event that the copies of a ticket end with; null if it is none, or was awaited.
  devices::cuda::EventHandle DoneOf(CudaTicket ticket) const;
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
    std::vector<kernels::LogitEdit> edits;  // as set, without edits that change nothing
    kernels::RowTask task = kernels::RowTask::kDraw;
    uint64_t sampler_state = 0;
    bool is_set = false;
    bool has_new_edits = false;
    bool has_new_state = false;
    bool has_sequence = false;               // the device has the row's edits, position and state
    bool has_new_sequence = false;           // the device lacks `sequence`, or its end
    kernels::cuda::DeviceSequence sequence;  // as it begins
  };

  // A row of a step, as far as its output depends on it.
  struct Sampled {
    kernels::RowParameters parameters;
    bool is_chained = false;
  };
  // The outputs of a step, copied to pinned memory.
  struct Copy {
    std::byte* memory = nullptr;
    devices::cuda::EventHandle done = nullptr;
    uint64_t ticket = 0;  // 0: free
    std::vector<Sampled> rows;
  };

  State(std::shared_ptr<devices::cuda::Context> context, const CudaLimits& limits, bool takes_null_stream);
  absl::Status Open();
  absl::Status CheckOnDevice(const void* pointer, const char* name) const;
  absl::Status CheckRow(uint32_t row) const;
  absl::Status CheckOrder(const CudaBatch& batch, std::span<const uint32_t> rows) const;
  absl::Status CheckRows() const;  // checks that all rows of the batch are set
  absl::Status CheckNoSequence(uint32_t row, const char* name) const;
  // Takes the index of a row of the batch, as the next functions do. Returns the sampler's row, or kNoRow.
  uint32_t PlaceOf(uint32_t index) const { return order_.empty() ? index : order_[index]; }
  const Row& RowAt(uint32_t index) const { return PlaceOf(index) == kNoRow ? nothing_ : rows_[PlaceOf(index)]; }
  bool IsChained(uint32_t index) const;
  kernels::cuda::RowInput MakeRowInput(uint32_t index) const;
  kernels::cuda::ChainedInput MakeChainedInput(uint32_t index) const;
  // Returns device addresses, in the sampler's memory or the caller's.
  devices::cuda::DevicePointer OutputsAddress() const;
  devices::cuda::DevicePointer TopsAddress(bool raw) const;
  // Queues a copy of a stage's bytes to the same offset in the device's memory.
  absl::Status Move(const Stage& stage, uint64_t offset, uint64_t bytes, CUstream_st* stream) const;
  // Queues copies of the edits that are new.
  absl::Status MoveEdits(const Stage& stage, CUstream_st* stream);
  // Queues the copies of new sequences, and the kernel that writes all sequences' state to the uploaded inputs.
  absl::Status MoveSequences(const Stage& stage, CUstream_st* stream);
  absl::Status Advance(bool follows_draw, CUstream_st* stream) const;
  const devices::cuda::Api& api() const { return context_->api(); }

  // Layout of the device's memory, which is one allocation. First, laid out as a stage: inputs, edits, chained inputs,
  // sampler states, sequences, order of the batch's rows. Then: rows' states, scratch, outputs, chained outputs, first
  // tokens of the raw and of the processed distributions, kept tokens. Offsets are in bytes. A Copy has the outputs,
  // chained outputs and first tokens, as the device has them.
  uint64_t EditsOffset(uint32_t row) const {
    return uint64_t{sizeof(kernels::cuda::RowInput)} * limits_.rows +
           uint64_t{sizeof(kernels::LogitEdit)} * limits_.edits * row;
  }
  uint64_t ChainedOffset() const { return EditsOffset(limits_.rows); }
  uint64_t SamplerStatesOffset() const {
    return ChainedOffset() + uint64_t{sizeof(kernels::cuda::ChainedInput)} * limits_.rows;
  }
  uint64_t SequencesOffset() const { return SamplerStatesOffset() + sizeof(uint64_t) * limits_.rows; }
  uint64_t OrderOffset() const {
    return SequencesOffset() + uint64_t{sizeof(kernels::cuda::DeviceSequence)} * limits_.rows;
  }
  uint64_t StatesOffset() const { return (OrderOffset() + sizeof(uint32_t) * limits_.rows + 7) / 8 * 8; }
  uint64_t ScratchOffset() const { return StatesOffset() + uint64_t{sizeof(kernels::cuda::RowState)} * limits_.rows; }
  uint64_t ScratchBytes() const;  // of a row
  uint64_t OutputsOffset() const { return ScratchOffset() + ScratchBytes() * limits_.rows; }
  uint64_t ChainedOutputsOffset() const {
    return OutputsOffset() + uint64_t{sizeof(kernels::cuda::RawOutput)} * limits_.rows;
  }
  uint64_t TopsOffset() const {
    return ChainedOutputsOffset() + uint64_t{sizeof(kernels::cuda::ChainedOutput)} * limits_.rows;
  }
  uint64_t TopsBytes() const { return uint64_t{sizeof(kernels::cuda::TopToken)} * limits_.top; }  // of a distribution
  uint64_t KeptOffset() const { return (TopsOffset() + 2 * TopsBytes() * limits_.rows + 7) / 8 * 8; }
  uint64_t KeptBytes() const { return uint64_t{sizeof(kernels::TokenBits)} * limits_.kept; }  // of a row
  uint64_t Bytes() const { return KeptOffset() + KeptBytes() * limits_.rows; }
  uint64_t CopyBytes() const { return KeptOffset() - OutputsOffset(); }

  const std::shared_ptr<devices::cuda::Context> context_;
  const CudaLimits limits_;
  const bool takes_null_stream_;
  devices::cuda::DevicePointer memory_ = 0;
  std::array<Stage, 4> stages_;
  size_t next_stage_ = 0;
  std::array<Copy, kMostTickets> copies_;
  uint64_t last_ticket_ = 0;
  CudaBatch batch_;
  std::vector<Row> rows_;
  std::vector<uint32_t> order_;  // PlaceOf; empty: the rows' own numbers
  Row nothing_;                  // for rows of the batch that the sampler does not have
  bool is_uploaded_ = false;
  kernels::cuda::LaterKernels needed_;  // as uploaded
  bool has_sequences_ = false;          // as uploaded
};

}  // namespace sortition
