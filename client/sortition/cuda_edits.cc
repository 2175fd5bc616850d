// Keeps the rows' edits, and copies those that are new to the device.
#include <algorithm>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "client/sortition/cuda_state.h"

namespace sortition {

using kernels::LogitEdit;

absl::Status CudaSampler::State::SetEdits(uint32_t row, std::span<const LogitEdit> edits) {
  if (absl::Status status = CheckRow(row); !status.ok()) return status;
  if (absl::Status status = CheckNoSequence(row, "SetEdits"); !status.ok()) return status;
  if (edits.size() > limits_.edits) {
    return absl::InvalidArgumentError(absl::StrCat("edits are ", edits.size(), ", at most ", limits_.edits));
  }
  for (size_t i = 0; i < edits.size(); ++i) {
    if (edits[i].token < limits_.vocabulary && (i == 0 || edits[i - 1].token < edits[i].token)) continue;
    return absl::InvalidArgumentError(absl::StrCat("edits[", i, "]: not sorted by token, or not of the vocabulary"));
  }
  const auto has_effect = [](const LogitEdit& edit) { return edit.flags != 0 || edit.bias != 0 || edit.penalty != 0; };
  Row& one = rows_[row];
  one.edits.clear();
  std::ranges::copy_if(edits, std::back_inserter(one.edits), has_effect);
  one.has_new_edits = true;
  is_uploaded_ = false;
  return absl::OkStatus();
}

absl::Status CudaSampler::State::MoveEdits(const Stage& stage, CUstream_st* stream) {
  for (uint32_t index = 0; index < limits_.rows; ++index) {
    Row& row = rows_[index];
    if (!row.has_new_edits) continue;
    if (!row.edits.empty()) {
      const uint64_t bytes = sizeof(LogitEdit) * row.edits.size();
      std::memcpy(stage.memory + EditsOffset(index), row.edits.data(), bytes);
      if (absl::Status status = Move(stage, EditsOffset(index), bytes, stream); !status.ok()) return status;
    }
    row.has_new_edits = false;
  }
  return absl::OkStatus();
}

}  // namespace sortition
