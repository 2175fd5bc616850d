// Rows' patches: what is set is kept here, what changed goes to the device in one copy, and is merged there.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/sortition/cuda_state.h"

namespace sortition {

using kernels::TokenPatch;
using kernels::cuda::kPatchGone;
using kernels::cuda::PatchChanges;
using kernels::cuda::PatchMerge;

namespace {

auto PlaceOf(std::vector<TokenPatch>* patches, uint32_t token) {
  return std::ranges::lower_bound(*patches, token, {}, &TokenPatch::token);
}

bool Names(const std::vector<TokenPatch>& patches, std::vector<TokenPatch>::const_iterator place, uint32_t token) {
  return place != patches.end() && place->token == token;
}

void Put(const TokenPatch& patch, std::vector<TokenPatch>* patches) {
  const auto place = PlaceOf(patches, patch.token);
  if (Names(*patches, place, patch.token)) {
    *place = patch;
  } else {
    patches->insert(place, patch);
  }
}

}  // namespace

absl::Status CudaSampler::State::CheckPatches(uint32_t row, std::span<const TokenPatch> patches,
                                              const char* name) const {
  if (absl::Status status = CheckRow(row); !status.ok()) return status;
  for (size_t i = 0; i < patches.size(); ++i) {
    if (patches[i].token < limits_.vocabulary && (i == 0 || patches[i - 1].token < patches[i].token)) continue;
    return absl::InvalidArgumentError(absl::StrCat(name, "[", i, "]: not sorted by token, or not of the vocabulary"));
  }
  return absl::OkStatus();
}

absl::Status CudaSampler::State::SetPatches(uint32_t row, std::span<const TokenPatch> patches) {
  if (patches.size() > limits_.patches) {
    return absl::InvalidArgumentError(absl::StrCat("patches are ", patches.size(), ", at most ", limits_.patches));
  }
  if (absl::Status status = CheckPatches(row, patches, "patches"); !status.ok()) return status;
  Row& one = rows_[row];
  one.patches.clear();
  std::ranges::copy_if(patches, std::back_inserter(one.patches), PatchChanges);
  one.changes.clear();
  one.is_list_new = !one.patches.empty() || one.patches_there != 0;
  is_uploaded_ = false;
  return absl::OkStatus();
}

absl::Status CudaSampler::State::ChangePatches(uint32_t row, std::span<const TokenPatch> changes) {
  if (absl::Status status = CheckPatches(row, changes, "changes"); !status.ok()) return status;
  Row& one = rows_[row];
  size_t count = one.patches.size();
  for (const TokenPatch& change : changes) {
    count += PatchChanges(change);
    count -= Names(one.patches, PlaceOf(&one.patches, change.token), change.token);
  }
  if (count > limits_.patches) {
    return absl::InvalidArgumentError(
        absl::StrCat("changes: the row would have ", count, " patches, at most ", limits_.patches));
  }
  for (const TokenPatch& change : changes) {
    if (!one.is_list_new) {
      Put(PatchChanges(change) ? change : TokenPatch{.token = change.token, .flags = kPatchGone}, &one.changes);
    }
    if (PatchChanges(change)) {
      Put(change, &one.patches);
    } else if (const auto place = PlaceOf(&one.patches, change.token); Names(one.patches, place, change.token)) {
      one.patches.erase(place);
    }
  }
  // Changes of more tokens than there are: the list is shorter.
  if (one.changes.size() > one.patches.size()) {
    one.changes.clear();
    one.is_list_new = true;
  }
  is_uploaded_ = false;
  return absl::OkStatus();
}

absl::Status CudaSampler::State::MovePatches(const Stage& stage, CUstream_st* stream) {
  uint32_t merges = 0;
  for (const Row& row : rows_) merges += row.has_new_patches();
  if (merges == 0) return absl::OkStatus();
  uint64_t at = MergesOffset();
  uint64_t patches_at = at + sizeof(PatchMerge) * merges;
  for (uint32_t row = 0; row < limits_.rows; ++row) {
    const Row& one = rows_[row];
    if (!one.has_new_patches()) continue;
    const std::vector<TokenPatch>& changes = one.is_list_new ? one.patches : one.changes;
    PatchMerge merge;
    merge.from = PointerTo<const TokenPatch>(PatchesAddress(row, one.half));
    merge.from_count = one.is_list_new ? 0 : one.patches_there;
    merge.changes = PointerTo<const TokenPatch>(memory_ + patches_at);
    merge.change_count = uint32_t(changes.size());
    merge.moved = PointerTo<uint32_t>(memory_ + ScratchOffset() + ScratchBytes() * row);
    merge.to = PointerTo<TokenPatch>(PatchesAddress(row, 1 - one.half));
    std::memcpy(stage.memory + at, &merge, sizeof(merge));
    if (!changes.empty()) {
      std::memcpy(stage.memory + patches_at, changes.data(), sizeof(TokenPatch) * changes.size());
    }
    at += sizeof(merge);
    patches_at += sizeof(TokenPatch) * changes.size();
  }
  if (absl::Status status = Move(stage, MergesOffset(), patches_at - MergesOffset(), stream); !status.ok()) {
    return status;
  }
  absl::Status status = context_->Merge(PointerTo<const PatchMerge>(memory_ + MergesOffset()), merges, stream);
  if (!status.ok()) return status;
  for (Row& row : rows_) {
    if (!row.has_new_patches()) continue;
    row.patches_there = uint32_t(row.patches.size());
    row.half = 1 - row.half;
    row.is_list_new = false;
    row.changes.clear();
  }
  return absl::OkStatus();
}

}  // namespace sortition
