// Uploads inputs and launches kernels.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/sortition/cuda_state.h"

namespace sortition {

using devices::cuda::CurrentContext;
using kernels::cuda::ChainedInput;
using kernels::cuda::ChainedOutput;
using kernels::cuda::RawOutput;
using kernels::cuda::RowInput;
using kernels::cuda::TopToken;

bool CudaSampler::State::IsChained(uint32_t index) const {
  return kernels::cuda::IsChained(RowAt(index).parameters, RowAt(index).task, false);
}

RowInput CudaSampler::State::MakeRowInput(uint32_t index) const {
  const Row& row = RowAt(index);
  const bool is_chained = IsChained(index);
  RowInput input = kernels::cuda::MakeRowInput(row.parameters, row.noise, batch_.dtype, batch_.vocabulary, is_chained);
  input.logits = PointerTo<const void>(ToDevicePointer(batch_.logits) + batch_.row_bytes * index);
  if (batch_.allowed_bits != nullptr) input.allowed = batch_.allowed_bits + batch_.allowed_words * index;
  if (batch_.positions != nullptr) input.position_at = batch_.positions + index;
  if (&row != &nothing_) input.edits = PointerTo<const kernels::LogitEdit>(memory_ + EditsOffset(PlaceOf(index)));
  // Tokens beyond the batch's vocabulary are padding.
  input.edit_count = uint32_t(std::ranges::lower_bound(row.edits, batch_.vocabulary, {}, &kernels::LogitEdit::token) -
                              row.edits.begin());
  input.scratch = PointerTo<uint32_t>(memory_ + ScratchOffset() + ScratchBytes() * index);
  if (is_chained) {
    input.chained = PointerTo<const ChainedInput>(memory_ + ChainedOffset() + sizeof(ChainedInput) * index);
  }
  input.raw_top = PointerTo<TopToken>(TopsAddress(true) + TopsBytes() * index);
  input.processed_top = PointerTo<TopToken>(TopsAddress(false) + TopsBytes() * index);
  return input;
}

ChainedInput CudaSampler::State::MakeChainedInput(uint32_t index) const {
  const Row& row = RowAt(index);
  ChainedInput chained = kernels::cuda::MakeChainedInput(row.parameters);
  if (&row != &nothing_) {
    chained.sampler_state_at = PointerTo<uint64_t>(memory_ + SamplerStatesOffset() + sizeof(uint64_t) * PlaceOf(index));
  }
  chained.output = PointerTo<ChainedOutput>(memory_ + ChainedOutputsOffset() + sizeof(ChainedOutput) * index);
  chained.task = row.task;
  if (batch_.given != nullptr) chained.given_at = batch_.given + index;
  if (batch_.accepted != nullptr) chained.accepted_at = batch_.accepted + index;
  if (batch_.draft != nullptr) {
    chained.draft.form = kernels::DraftDistribution::Form::kDense;
    chained.draft.dtype = batch_.draft_dtype;
    chained.draft.dense = PointerTo<const void>(ToDevicePointer(batch_.draft) + batch_.draft_row_bytes * index);
  }
  if (row.parameters.kept_tokens) {
    chained.kept = PointerTo<kernels::TokenBits>(memory_ + KeptOffset() + KeptBytes() * index);
  }
  return chained;
}

devices::cuda::DevicePointer CudaSampler::State::OutputsAddress() const {
  return batch_.outputs != nullptr ? ToDevicePointer(batch_.outputs) : memory_ + OutputsOffset();
}

devices::cuda::DevicePointer CudaSampler::State::TopsAddress(bool raw) const {
  const TopToken* const callers = raw ? batch_.raw_top : batch_.processed_top;
  if (callers != nullptr) return ToDevicePointer(callers);
  return memory_ + TopsOffset() + (raw ? 0 : TopsBytes() * limits_.rows);
}

absl::Status CudaSampler::State::Move(const Stage& stage, uint64_t offset, uint64_t bytes, CUstream_st* stream) const {
  SORTITION_CUDA_RETURN_IF_ERROR(api(), MemcpyHtoDAsync(memory_ + offset, stage.memory + offset, bytes, stream));
  return absl::OkStatus();
}

absl::Status CudaSampler::State::CheckRows() const {
  for (uint32_t index = 0; index < batch_.rows; ++index) {
    const Row& row = RowAt(index);
    if (!row.is_set) return absl::FailedPreconditionError(absl::StrCat("row ", PlaceOf(index), " was never set"));
    if (row.task == kernels::RowTask::kDraw || batch_.given != nullptr) continue;
    return absl::FailedPreconditionError(absl::StrCat("row ", PlaceOf(index), " has a task that needs batch.given"));
  }
  return absl::OkStatus();
}

absl::Status CudaSampler::State::Upload(CUstream_st* stream) {
  if (absl::Status status = CheckStream(stream, false); !status.ok()) return status;
  if (batch_.rows == 0) return absl::FailedPreconditionError("Upload before Bind");
  if (absl::Status status = CheckRows(); !status.ok()) return status;
  const CurrentContext current(*context_);
  if (!current.status().ok()) return current.status();
  Stage& stage = stages_[next_stage_++ % stages_.size()];
  SORTITION_CUDA_RETURN_IF_ERROR(api(), EventSynchronize(stage.done));
  is_uploaded_ = false;
  needed_ = {};
  for (uint32_t row = 0; row < batch_.rows; ++row) {
    const RowInput input = MakeRowInput(row);
    needed_ |= kernels::cuda::NeededBy(input);
    std::memcpy(stage.memory + sizeof(RowInput) * row, &input, sizeof(input));
    const ChainedInput chained = MakeChainedInput(row);
    std::memcpy(stage.memory + ChainedOffset() + sizeof(ChainedInput) * row, &chained, sizeof(chained));
  }
  absl::Status status = Move(stage, 0, sizeof(RowInput) * batch_.rows, stream);
  if (status.ok() && needed_.chain) {
    status = Move(stage, ChainedOffset(), sizeof(ChainedInput) * batch_.rows, stream);
  }
  if (status.ok()) status = MoveEdits(stage, stream);
  for (uint32_t row = 0; row < limits_.rows; ++row) {
    if (status.ok() && rows_[row].has_new_state && kernels::KeepsSamplerState(rows_[row].parameters.chain)) {
      const uint64_t at = SamplerStatesOffset() + sizeof(uint64_t) * row;
      std::memcpy(stage.memory + at, &rows_[row].sampler_state, sizeof(uint64_t));
      status = Move(stage, at, sizeof(uint64_t), stream);
    }
    if (!status.ok()) break;
    rows_[row].has_new_state = false;
  }
  if (status.ok()) status = MoveSequences(stage, stream);
  if (!status.ok()) return status;
  SORTITION_CUDA_RETURN_IF_ERROR(api(), EventRecord(stage.done, stream));
  is_uploaded_ = true;
  return absl::OkStatus();
}

absl::Status CudaSampler::State::Sample(CUstream_st* stream) {
  if (absl::Status status = CheckStream(stream, true); !status.ok()) return status;
  if (!is_uploaded_) return absl::FailedPreconditionError("Sample before Upload of what was last set");
  const CurrentContext current(*context_);
  if (!current.status().ok()) return current.status();
  kernels::cuda::BatchView view;
  view.inputs = PointerTo<const RowInput>(memory_);
  view.states = PointerTo<kernels::cuda::RowState>(memory_ + StatesOffset());
  view.outputs = PointerTo<RawOutput>(OutputsAddress());
  view.tokens = batch_.tokens;
  view.logprobs = batch_.logprobs;
  const kernels::cuda::Geometry geometry = kernels::cuda::ChooseGeometry(
      batch_.rows, kernels::cuda::GroupsOf(batch_.vocabulary), context_->hardware().multiprocessors);
  view.section_groups = geometry.section_groups;
  absl::Status status = context_->Launch(view, batch_.rows, geometry.sections, needed_, stream);
  return status.ok() && has_sequences_ ? Advance(true, stream) : status;
}

}  // namespace sortition
