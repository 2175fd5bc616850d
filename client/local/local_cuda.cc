// Rows of the device's memory to a lane, answers to sequences.
#include "client/local/local_cuda.h"

#include <algorithm>
#include <optional>
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
// Device memory that a batch may take besides the rows; one that needs more runs in chunks.
constexpr uint64_t kMostBytes = 512u << 20;

bool IsOn(const Context& context, const void* pointer) {
  int device = -1;
  const devices::cuda::Result result =
      context.api().PointerGetAttribute(&device, devices::cuda::PointerAttribute::kDeviceOrdinal,
                                        reinterpret_cast<devices::cuda::DevicePointer>(pointer));
  return result == devices::cuda::Result::kSuccess && device == static_cast<int>(context.hardware().index);
}

// Returns an error if the kernels cannot run row number `row` of a sequence with these parameters.
std::optional<RowError> WhyNotHere(const kernels::RowParameters& parameters, const Row& task, uint32_t row) {
  const bool is_block = task.drafts != nullptr && task.drafts->mode == v1::VERIFY_MODE_BLOCK;
  // A place with several drafts is tested in rounds.
  const bool has_rounds = task.drafts != nullptr && task.drafts->has_probabilities() &&
                          task.drafts->distributions() < task.drafts->tokens.size();
  const bool is_verified_here = !is_block && !has_rounds;
  if (!parameters.tempered_logprob && !parameters.kept_log_mass && is_verified_here) return std::nullopt;
  RowError error;
  error.code = absl::StatusCode::kUnimplemented;
  error.reason = v1::NOT_IMPLEMENTED;
  error.field = parameters.tempered_logprob ? "parameters.tempered_logprobs" : "parameters.kept_log_mass";
  if (is_block) error.field = absl::StrCat("rows[", row, "].drafts.mode");
  if (has_rounds) error.field = absl::StrCat("rows[", row, "].drafts.parents");
  error.message = absl::StrCat("rows[", row, "]: the CUDA kernels do not give it; a LocalSequence does, by itself");
  return error;
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

absl::StatusOr<std::vector<RowResult>> LocalCuda::Step(v1::DType dtype, std::span<LocalSequence* const> sequences,
                                                       std::span<const Row> rows, CUstream_st* stream,
                                                       v1::DType draft_dtype) {
  if (absl::Status status = Check(sequences, rows); !status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  if (absl::Status status = lane_->WaitFor(stream); !status.ok()) return status;

  std::vector<RowResult> outcomes(rows.size());
  std::vector<Begun> begun;
  for (uint32_t i = 0; i < rows.size(); ++i) {
    if (auto error = WhyNotHere(sequences[i]->own_->parameters(), rows[i], i)) {
      outcomes[i] = *std::move(error);
      continue;
    }
    auto requests = sequences[i]->own_->Begin(dtype, rows[i], {draft_dtype, i});
    if (auto* const error = std::get_if<RowError>(&requests)) {
      outcomes[i] = std::move(*error);
    } else {
      begun.push_back({i, std::get<LocalText::Requests>(std::move(requests))});
    }
  }
  // No sequence advances before all answers are there.
  if (absl::Status status = Answer(sequences, &begun); !status.ok()) {
    for (const Begun& row : begun) sequences[row.index]->own_->Abandon();
    return status;
  }
  for (const Begun& row : begun) outcomes[row.index] = sequences[row.index]->own_->End();
  return outcomes;
}

absl::Status LocalCuda::Answer(std::span<LocalSequence* const> sequences, std::vector<Begun>* begun) {
  for (;;) {
    std::vector<devices::DeviceRow> batch;
    for (const Begun& row : *begun) {
      for (const kernels::RowRequest& request : row.requests) {
        devices::DeviceRow& on_device = batch.emplace_back();
        on_device.request = request;
        on_device.segments.push_back({static_cast<const std::byte*>(request.logits),
                                      size_t{request.live_vocabulary} * kernels::ElementBytes(request.dtype)});
        on_device.memory = kDeviceMemory;
      }
    }
    if (batch.empty()) return absl::OkStatus();
    std::vector<kernels::RowOutput> answers;
    uint64_t nanoseconds = 0;
    if (absl::Status status = lane_->Run(batch, &answers, &nanoseconds); !status.ok()) return status;
    SORTITION_CHECK(answers.size() == batch.size());
    std::span<kernels::RowOutput> left(answers);
    for (Begun& row : *begun) {
      const size_t count = row.requests.size();
      if (count > 0) row.requests = sequences[row.index]->own_->Continue(left.first(count));
      left = left.subspan(count);
    }
  }
}

}  // namespace sortition::client
