// Brings outputs to the host: at once, or later.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/sortition/cuda_state.h"

namespace sortition {

using devices::cuda::CurrentContext;
using kernels::cuda::ChainedOutput;
using kernels::cuda::RawOutput;
using kernels::cuda::TopToken;

absl::Status CudaSampler::State::Fetch(CUstream_st* stream, CudaTicket* ticket) {
  if (absl::Status status = CheckStream(stream, false); !status.ok()) return status;
  if (!is_uploaded_) return absl::FailedPreconditionError("Fetch of rows that were not sampled");
  const auto has_tops = [&](const Row& row) {
    return row.parameters.raw_top != 0 || row.parameters.processed_top != 0;
  };
  bool any_tops = false;
  for (uint32_t row = 0; row < batch_.rows; ++row) {
    any_tops = any_tops || has_tops(RowAt(row));
    if (!RowAt(row).parameters.kept_tokens) continue;
    return absl::FailedPreconditionError(absl::StrCat("row ", row, " requests its kept tokens, which Download brings"));
  }
  const auto free = std::ranges::find(copies_, uint64_t{0}, &Copy::ticket);
  if (free == copies_.end()) {
    return absl::ResourceExhaustedError(absl::StrCat(kMostTickets, " tickets were not awaited yet"));
  }
  const CurrentContext current(*context_);
  if (!current.status().ok()) return current.status();
  if (free->memory == nullptr) {
    void* memory = nullptr;
    SORTITION_CUDA_RETURN_IF_ERROR(api(), MemHostAlloc(&memory, CopyBytes(), 0));
    free->memory = static_cast<std::byte*>(memory);
  }
  if (free->done == nullptr) {
    SORTITION_CUDA_RETURN_IF_ERROR(api(), EventCreate(&free->done, devices::cuda::kEventDefault));
  }
  const auto fetch = [&](uint64_t offset, devices::cuda::DevicePointer from, uint64_t bytes) -> absl::Status {
    SORTITION_CUDA_RETURN_IF_ERROR(api(),
                                   MemcpyDtoHAsync(free->memory + (offset - OutputsOffset()), from, bytes, stream));
    return absl::OkStatus();
  };
  absl::Status status = fetch(OutputsOffset(), OutputsAddress(), sizeof(RawOutput) * batch_.rows);
  if (status.ok() && needed_.chain) {
    status = fetch(ChainedOutputsOffset(), memory_ + ChainedOutputsOffset(), sizeof(ChainedOutput) * batch_.rows);
  }
  for (const bool raw : {true, false}) {
    if (!status.ok() || !any_tops) break;
    const uint64_t offset = TopsOffset() + (raw ? 0 : TopsBytes() * limits_.rows);
    status = fetch(offset, TopsAddress(raw), TopsBytes() * batch_.rows);
  }
  if (!status.ok()) return status;
  SORTITION_CUDA_RETURN_IF_ERROR(api(), EventRecord(free->done, stream));
  free->rows.clear();
  for (uint32_t row = 0; row < batch_.rows; ++row) free->rows.push_back({RowAt(row).parameters, IsChained(row)});
  free->ticket = ticket->number = ++last_ticket_;
  return absl::OkStatus();
}

devices::cuda::EventHandle CudaSampler::State::DoneOf(CudaTicket ticket) const {
  const auto copy = std::ranges::find(copies_, ticket.number, &Copy::ticket);
  return ticket.number == 0 || copy == copies_.end() ? nullptr : copy->done;
}

absl::Status CudaSampler::State::Await(CudaTicket ticket, std::vector<kernels::RowOutput>* outputs) {
  const auto copy = std::ranges::find(copies_, ticket.number, &Copy::ticket);
  if (ticket.number == 0 || copy == copies_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("ticket ", ticket.number, " is none, or was awaited"));
  }
  const CurrentContext current(*context_);
  if (!current.status().ok()) return current.status();
  SORTITION_CUDA_RETURN_IF_ERROR(api(), EventSynchronize(copy->done));
  const auto at = [&]<typename T>(uint64_t offset, const T*) {
    return reinterpret_cast<const T*>(copy->memory + (offset - OutputsOffset()));
  };
  outputs->resize(copy->rows.size());
  for (uint32_t row = 0; row < copy->rows.size(); ++row) {
    kernels::cuda::OutputView view;
    view.output = at(OutputsOffset(), view.output) + row;
    view.raw_top = at(TopsOffset(), view.raw_top) + uint64_t{limits_.top} * row;
    view.processed_top =
        at(TopsOffset() + TopsBytes() * limits_.rows, view.processed_top) + uint64_t{limits_.top} * row;
    if (copy->rows[row].is_chained) view.chained = at(ChainedOutputsOffset(), view.chained) + row;
    (*outputs)[row] = kernels::cuda::ReadOutput(copy->rows[row].parameters, view);
  }
  copy->ticket = 0;
  return absl::OkStatus();
}

absl::Status CudaSampler::State::Download(CUstream_st* stream, std::span<kernels::RowOutput> outputs) {
  if (absl::Status status = CheckStream(stream, false); !status.ok()) return status;
  if (outputs.empty()) return absl::OkStatus();
  if (!is_uploaded_ || outputs.size() > batch_.rows) {
    return absl::FailedPreconditionError(absl::StrCat("Download of ", outputs.size(), " rows that were not sampled"));
  }
  const CurrentContext current(*context_);
  if (!current.status().ok()) return current.status();
  const auto rows = uint32_t(outputs.size());
  std::vector<RawOutput> raw(rows);
  std::vector<ChainedOutput> chained(needed_.chain ? rows : 0);
  std::vector<TopToken> raw_tops(uint64_t{limits_.top} * rows);
  std::vector<TopToken> processed_tops(raw_tops.size());
  const auto fetch = [&]<typename T>(std::vector<T>* to, devices::cuda::DevicePointer from) -> absl::Status {
    if (to->empty()) return absl::OkStatus();
    SORTITION_CUDA_RETURN_IF_ERROR(api(), MemcpyDtoHAsync(to->data(), from, sizeof(T) * to->size(), stream));
    return absl::OkStatus();
  };
  if (absl::Status status = fetch(&raw, OutputsAddress()); !status.ok()) return status;
  if (absl::Status status = fetch(&chained, memory_ + ChainedOutputsOffset()); !status.ok()) return status;
  if (absl::Status status = fetch(&raw_tops, TopsAddress(true)); !status.ok()) return status;
  if (absl::Status status = fetch(&processed_tops, TopsAddress(false)); !status.ok()) return status;
  SORTITION_CUDA_RETURN_IF_ERROR(api(), StreamSynchronize(stream));
  // Copies the kept tokens, up to the room for them.
  std::vector<std::vector<kernels::TokenBits>> kept(rows);
  bool has_kept = false;
  for (uint32_t row = 0; row < rows; ++row) {
    if (!RowAt(row).parameters.kept_tokens || raw[row].error != kernels::RowFault::kNone) continue;
    kept[row].resize(raw[row].kept);
    has_kept = true;
    if (absl::Status status = fetch(&kept[row], memory_ + KeptOffset() + KeptBytes() * row); !status.ok())
      return status;
  }
  if (has_kept) SORTITION_CUDA_RETURN_IF_ERROR(api(), StreamSynchronize(stream));
  for (uint32_t row = 0; row < rows; ++row) {
    kernels::cuda::OutputView view;
    view.output = &raw[row];
    view.raw_top = raw_tops.data() + uint64_t{limits_.top} * row;
    view.processed_top = processed_tops.data() + uint64_t{limits_.top} * row;
    if (IsChained(row)) {
      view.chained = &chained[row];
      view.kept = kept[row].data();
    }
    outputs[row] = kernels::cuda::ReadOutput(RowAt(row).parameters, view);
  }
  return absl::OkStatus();
}

}  // namespace sortition
