// Rows of the device's memory to a lane, answers to sequences.
#include "client/cpp/local_cuda.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "devices/cuda/api.h"
#include "kernels/check.h"

namespace sortition::client {
namespace {

using devices::cuda::Context;
using devices::cuda::CurrentContext;

constexpr uint32_t kDeviceMemory = devices::kHostMemory + 1;
// Of device memory, beside the rows, that a batch may take; one that needs more runs in slices.
constexpr uint64_t kMostBytes = 512u << 20;

bool IsOn(const Context& context, const void* pointer) {
  int device = -1;
  const devices::cuda::Result result =
      context.api().PointerGetAttribute(&device, devices::cuda::PointerAttribute::kDeviceOrdinal,
                                        reinterpret_cast<devices::cuda::DevicePointer>(pointer));
  return result == devices::cuda::Result::kSuccess && device == static_cast<int>(context.hardware().index);
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalCuda>> LocalCuda::Create(int device) {
  auto context = Context::OfDevice(device);
  if (!context.ok()) return context.status();
  return CreateOn(*std::move(context));
}

absl::StatusOr<std::unique_ptr<LocalCuda>> LocalCuda::CreateOn(std::shared_ptr<Context> context) {
  auto lane = devices::cuda::Lane::Create(context, kMostBytes);
  if (!lane.ok()) return lane.status();
  return std::unique_ptr<LocalCuda>(new LocalCuda(std::move(context), *std::move(lane)));
}

LocalCuda::LocalCuda(std::shared_ptr<Context> context, std::unique_ptr<devices::cuda::Lane> lane)
    : context_(std::move(context)), lane_(std::move(lane)) {}

absl::Status LocalCuda::Check(std::span<LocalSequence* const> sequences, std::span<const Row> rows) const {
  if (rows.size() != sequences.size()) return absl::InvalidArgumentError("rows: one for each sequence");
  std::vector<LocalSequence*> sorted(sequences.begin(), sequences.end());
  std::ranges::sort(sorted);
  if (std::ranges::adjacent_find(sorted) != sorted.end()) {
    return absl::InvalidArgumentError("sequences: one is named twice in a step");
  }
  const CurrentContext current(*context_);
  if (!current.status().ok()) return current.status();
  for (size_t i = 0; i < rows.size(); ++i) {
    if (IsOn(*context_, rows[i].logits)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("rows[", i, "].logits is not in the memory of CUDA device ", context_->hardware().index));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<RowOutcome>> LocalCuda::Step(v1::DType dtype, std::span<LocalSequence* const> sequences,
                                                        std::span<const Row> rows, CUstream_st* stream) {
  if (absl::Status status = Check(sequences, rows); !status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  if (absl::Status status = lane_->WaitFor(stream); !status.ok()) return status;

  std::vector<RowOutcome> outcomes(rows.size());
  std::vector<size_t> begun;
  std::vector<devices::DeviceRow> batch;
  for (size_t i = 0; i < rows.size(); ++i) {
    auto request = sequences[i]->Begin(dtype, rows[i]);
    if (auto* const error = std::get_if<RowError>(&request)) {
      outcomes[i] = std::move(*error);
      continue;
    }
    devices::DeviceRow& row = batch.emplace_back();
    row.request = std::get<kernels::RowRequest>(request);
    row.segments.push_back({static_cast<const std::byte*>(rows[i].logits),
                            size_t{row.request.live_vocabulary} * kernels::ElementBytes(row.request.dtype)});
    row.memory = kDeviceMemory;
    begun.push_back(i);
  }
  std::vector<kernels::RowAnswer> answers;
  uint64_t nanoseconds = 0;
  const absl::Status status = lane_->Run(batch, &answers, &nanoseconds);
  if (!status.ok()) {
    for (const size_t i : begun) sequences[i]->Abandon();
    return status;
  }
  SORTITION_CHECK(answers.size() == begun.size());
  for (size_t i = 0; i < begun.size(); ++i) outcomes[begun[i]] = sequences[begun[i]]->End(answers[i]);
  return outcomes;
}

}  // namespace sortition::client
