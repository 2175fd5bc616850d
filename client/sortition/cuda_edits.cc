// Keeps the rows' edits. Changes go to the device in one copy and are merged there.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/sortition/cuda_state.h"

namespace sortition {

using kernels::LogitEdit;
using kernels::cuda::EditChanges;
using kernels::cuda::EditMerge;
using kernels::cuda::kEditGone;

namespace {

auto PlaceOf(std::vector<LogitEdit>* edits, uint32_t token) {
  return std::ranges::lower_bound(*edits, token, {}, &LogitEdit::token);
}

bool Names(const std::vector<LogitEdit>& edits, std::vector<LogitEdit>::const_iterator place, uint32_t token) {
  return place != edits.end() && place->token == token;
}

void Put(const LogitEdit& edit, std::vector<LogitEdit>* edits) {
  const auto place = PlaceOf(edits, edit.token);
  if (Names(*edits, place, edit.token)) {
    *place = edit;
  } else {
    edits->insert(place, edit);
  }
}

}  // namespace

absl::Status CudaSampler::State::CheckEdits(uint32_t row, std::span<const LogitEdit> edits, const char* name) const {
  if (absl::Status status = CheckRow(row); !status.ok()) return status;
  for (size_t i = 0; i < edits.size(); ++i) {
    if (edits[i].token < limits_.vocabulary && (i == 0 || edits[i - 1].token < edits[i].token)) continue;
    return absl::InvalidArgumentError(absl::StrCat(name, "[", i, "]: not sorted by token, or not of the vocabulary"));
  }
  return absl::OkStatus();
}

absl::Status CudaSampler::State::SetEdits(uint32_t row, std::span<const LogitEdit> edits) {
  if (edits.size() > limits_.edits) {
    return absl::InvalidArgumentError(absl::StrCat("edits are ", edits.size(), ", at most ", limits_.edits));
  }
  if (absl::Status status = CheckEdits(row, edits, "edits"); !status.ok()) return status;
  Row& one = rows_[row];
  one.edits.clear();
  std::ranges::copy_if(edits, std::back_inserter(one.edits), EditChanges);
  one.changes.clear();
  one.is_list_new = !one.edits.empty() || one.edits_there != 0;
  is_uploaded_ = false;
  return absl::OkStatus();
}

absl::Status CudaSampler::State::ChangeEdits(uint32_t row, std::span<const LogitEdit> changes) {
  if (absl::Status status = CheckEdits(row, changes, "changes"); !status.ok()) return status;
  Row& one = rows_[row];
  size_t count = one.edits.size();
  for (const LogitEdit& change : changes) {
    count += EditChanges(change);
    count -= Names(one.edits, PlaceOf(&one.edits, change.token), change.token);
  }
  if (count > limits_.edits) {
    return absl::InvalidArgumentError(
        absl::StrCat("changes: the row would have ", count, " edits, at most ", limits_.edits));
  }
  for (const LogitEdit& change : changes) {
    if (!one.is_list_new) {
      Put(EditChanges(change) ? change : LogitEdit{.token = change.token, .flags = kEditGone}, &one.changes);
    }
    if (EditChanges(change)) {
      Put(change, &one.edits);
    } else if (const auto place = PlaceOf(&one.edits, change.token); Names(one.edits, place, change.token)) {
      one.edits.erase(place);
    }
  }
  // The whole list is shorter than its changes.
  if (one.changes.size() > one.edits.size()) {
    one.changes.clear();
    one.is_list_new = true;
  }
  is_uploaded_ = false;
  return absl::OkStatus();
}

absl::Status CudaSampler::State::MoveEdits(const Stage& stage, CUstream_st* stream) {
  uint32_t merges = 0;
  for (const Row& row : rows_) merges += row.has_new_edits();
  if (merges == 0) return absl::OkStatus();
  uint64_t at = MergesOffset();
  uint64_t edits_at = at + sizeof(EditMerge) * merges;
  for (uint32_t row = 0; row < limits_.rows; ++row) {
    const Row& one = rows_[row];
    if (!one.has_new_edits()) continue;
    const std::vector<LogitEdit>& changes = one.is_list_new ? one.edits : one.changes;
    EditMerge merge;
    merge.from = PointerTo<const LogitEdit>(EditsAddress(row, one.half));
    merge.from_count = one.is_list_new ? 0 : one.edits_there;
    merge.changes = PointerTo<const LogitEdit>(memory_ + edits_at);
    merge.change_count = uint32_t(changes.size());
    merge.moved = PointerTo<uint32_t>(memory_ + ScratchOffset() + ScratchBytes() * row);
    merge.to = PointerTo<LogitEdit>(EditsAddress(row, 1 - one.half));
    std::memcpy(stage.memory + at, &merge, sizeof(merge));
    if (!changes.empty()) {
      std::memcpy(stage.memory + edits_at, changes.data(), sizeof(LogitEdit) * changes.size());
    }
    at += sizeof(merge);
    edits_at += sizeof(LogitEdit) * changes.size();
  }
  if (absl::Status status = Move(stage, MergesOffset(), edits_at - MergesOffset(), stream); !status.ok()) {
    return status;
  }
  absl::Status status = context_->Merge(PointerTo<const EditMerge>(memory_ + MergesOffset()), merges, stream);
  if (!status.ok()) return status;
  for (Row& row : rows_) {
    if (!row.has_new_edits()) continue;
    row.edits_there = uint32_t(row.edits.size());
    row.half = 1 - row.half;
    row.is_list_new = false;
    row.changes.clear();
  }
  return absl::OkStatus();
}

}  // namespace sortition
