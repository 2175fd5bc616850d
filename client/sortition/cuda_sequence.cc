// Starts rows' sequences, which the device then advances.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/sortition/cuda_state.h"
#include "kernels/law/options.h"

namespace sortition {

using kernels::LogitEdit;
using kernels::cuda::DeviceSequence;

static_assert(CudaSampler::kNoRow == kernels::cuda::kNoSequence);

namespace {

absl::Status CheckPenalties(const law::SamplingParameters& parameters) {
  law::SamplingParameters penalties;
  penalties.repetition_penalty = parameters.repetition_penalty;
  penalties.frequency_penalty = parameters.frequency_penalty;
  penalties.presence_penalty = parameters.presence_penalty;
  const auto found = law::FindOutOfRange(penalties);
  if (!found) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("parameters.", std::string(found->field), " is out of range"));
}

}  // namespace

absl::Status CudaSampler::State::CheckNoSequence(uint32_t row, const char* name) const {
  if (row >= limits_.rows || !rows_[row].has_sequence) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(name, ": row ", row, " has a sequence, which the device advances"));
}

absl::Status CudaSampler::State::SetSequence(uint32_t row, const law::SamplingParameters& parameters,
                                             std::span<const TokenCount> counts) {
  if (absl::Status status = CheckRow(row); !status.ok()) return status;
  if (absl::Status status = CheckNoSequence(row, "SetSequence"); !status.ok()) return status;
  if (absl::Status status = CheckPenalties(parameters); !status.ok()) return status;
  Row& one = rows_[row];
  if (!one.is_set || one.task != kernels::RowTask::kDraw) {
    return absl::FailedPreconditionError(absl::StrCat("SetSequence: row ", row, " was never set, or does not draw"));
  }
  DeviceSequence sequence;
  sequence.minus_frequency = -double(parameters.frequency_penalty);
  sequence.presence = double(parameters.presence_penalty);
  sequence.most_edits = limits_.edits;
  sequence.position = one.noise.position;
  sequence.counts =
      parameters.frequency_penalty != 0 || parameters.presence_penalty != 0 || parameters.repetition_penalty != 1;
  std::vector<LogitEdit> edits = one.edits;
  for (const LogitEdit& edit : edits) {
    if (edit.penalty == 0 && edit.flags >> kernels::cuda::kDrawnShift == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("edits: that of token ", edit.token, " has a penalty"));
  }
  for (size_t i = 0; i < counts.size(); ++i) {
    const auto [token, count] = counts[i];
    if (token >= limits_.vocabulary || (i > 0 && counts[i - 1].token >= token)) {
      return absl::InvalidArgumentError(absl::StrCat("counts[", i, "]: not sorted by token, or not of the vocabulary"));
    }
    if (count > kernels::cuda::kMostDrawn) {
      return absl::InvalidArgumentError(
          absl::StrCat("counts[", i, "].count is ", count, ", at most ", kernels::cuda::kMostDrawn));
    }
    if (count == 0 || sequence.counts == 0) continue;
    auto place = std::ranges::lower_bound(edits, token, {}, &LogitEdit::token);
    if (place == edits.end() || place->token != token) place = edits.insert(place, {.token = token});
    place->flags |= LogitEdit::kRepeated | count << kernels::cuda::kDrawnShift;
    place->penalty = law::PenaltyBits(parameters.frequency_penalty, parameters.presence_penalty, count);
  }
  if (edits.size() > limits_.edits) {
    return absl::InvalidArgumentError(
        absl::StrCat("counts: the row would have ", edits.size(), " edits, at most ", limits_.edits));
  }
  sequence.edit_count = uint32_t(edits.size());
  one.edits = std::move(edits);
  one.has_new_edits = true;
  one.sequence = sequence;
  one.has_sequence = one.has_new_sequence = true;
  is_uploaded_ = false;
  return absl::OkStatus();
}

absl::Status CudaSampler::State::MoveSequences(const Stage& stage, CUstream_st* stream) {
  has_sequences_ = false;
  for (uint32_t index = 0; index < batch_.rows; ++index) has_sequences_ = has_sequences_ || RowAt(index).has_sequence;
  for (uint32_t index = 0; index < limits_.rows; ++index) {
    Row& row = rows_[index];
    if (!row.has_new_sequence) continue;
    DeviceSequence sequence;
    if (row.has_sequence) {
      sequence = row.sequence;
      sequence.edits = PointerTo<LogitEdit>(memory_ + EditsOffset(index));
    }
    const uint64_t at = SequencesOffset() + sizeof(DeviceSequence) * index;
    std::memcpy(stage.memory + at, &sequence, sizeof(sequence));
    if (absl::Status status = Move(stage, at, sizeof(sequence), stream); !status.ok()) return status;
    row.has_new_sequence = false;
  }
  if (!has_sequences_) return absl::OkStatus();
  if (!order_.empty()) {
    const uint64_t bytes = sizeof(uint32_t) * order_.size();
    std::memcpy(stage.memory + OrderOffset(), order_.data(), bytes);
    if (absl::Status status = Move(stage, OrderOffset(), bytes, stream); !status.ok()) return status;
  }
  return Advance(false, stream);
}

absl::Status CudaSampler::State::Advance(bool follows_draw, CUstream_st* stream) const {
  kernels::cuda::SequenceView view;
  view.sequences = PointerTo<DeviceSequence>(memory_ + SequencesOffset());
  if (!order_.empty()) view.order = PointerTo<const uint32_t>(memory_ + OrderOffset());
  view.inputs = PointerTo<kernels::cuda::RowInput>(memory_);
  view.outputs = PointerTo<kernels::cuda::RawOutput>(OutputsAddress());
  view.tokens = batch_.tokens;
  view.logprobs = batch_.logprobs;
  view.follows_draw = follows_draw;
  return context_->Advance(view, batch_.rows, stream);
}

}  // namespace sortition
