// Queues the waits in the callers' streams and the writes in a separate one.
#include "client/cpp/cuda/cuda_results.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace sortition::client {
namespace {

using devices::cuda::Api;
using devices::cuda::CurrentContext;
using devices::cuda::Hardware;

// Upper bound on the rows of a step.
constexpr uint32_t kMostRows = 1 << 20;

float LogprobOf(const v1::DrawResult& draw) {
  if (draw.has_raw()) return draw.raw().logprob();
  return draw.has_processed() ? draw.processed().logprob() : 0.0f;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaResults>> CudaResults::Create(int device, uint32_t rows) {
  const auto api = Api::Load();
  if (!api.ok()) return api.status();
  const auto hardware = devices::cuda::FindHardware(*api, device);
  if (!hardware.ok()) return hardware.status();
  return CreateOn(*api, *hardware, rows);
}

absl::StatusOr<std::unique_ptr<CudaResults>> CudaResults::CreateOn(const Api& api, const Hardware& hardware,
                                                                   uint32_t rows) {
  if (rows == 0 || rows > kMostRows)
    return absl::InvalidArgumentError(absl::StrCat("rows: ", rows, " of 1..", kMostRows));
  std::unique_ptr<CudaResults> results(new CudaResults(api, hardware, rows));
  if (absl::Status status = results->Open(); !status.ok()) return status;
  return results;
}

absl::Status CudaResults::Open() {
  SORTITION_CUDA_RETURN_IF_ERROR(api_, DevicePrimaryCtxRetain(&context_, hardware_.handle));
  const CurrentContext current(api_, context_);
  if (!current.status().ok()) return current.status();
  SORTITION_CUDA_RETURN_IF_ERROR(api_, StreamCreate(&stream_, devices::cuda::kStreamNonBlocking));
  SORTITION_CUDA_RETURN_IF_ERROR(api_, MemAlloc(&memory_, bytes() + sizeof(uint32_t)));
  absl::Status cleared = devices::cuda::Clear(api_, memory_, bytes() + sizeof(uint32_t));
  if (!cleared.ok()) return cleared;
  void* staging = nullptr;
  SORTITION_CUDA_RETURN_IF_ERROR(api_, MemHostAlloc(&staging, bytes(), 0));
  staging_ = static_cast<std::byte*>(staging);
  return absl::OkStatus();
}

CudaResults::~CudaResults() {
  SORTITION_CHECK(unwritten_.empty());
  {
    const CurrentContext current(api_, context_);
    // Waits for all work of the device first. Errors are ignored: a lost device has no work to wait for.
    if (memory_ != 0) api_.MemFree(memory_);
    if (staging_ != nullptr) api_.MemFreeHost(staging_);
    if (stream_ != nullptr) api_.StreamDestroy(stream_);
  }
  if (context_ != nullptr) api_.DevicePrimaryCtxRelease(hardware_.handle);
}

const int32_t* CudaResults::tokens() const { return reinterpret_cast<const int32_t*>(memory_); }

const float* CudaResults::logprobs() const {
  return reinterpret_cast<const float*>(memory_ + uint64_t{rows_} * sizeof(int32_t));
}

absl::Status CudaResults::StepAsync(Client* client, const Batch& batch, const StepOptions& options, CUstream_st* stream,
                                    Client::StepDone done) {
  if (batch.rows.size() > rows_) {
    return absl::InvalidArgumentError(absl::StrCat("rows: ", batch.rows.size(), ", results have room for ", rows_));
  }
  const uint32_t value = value_ + 1;
  {
    const CurrentContext current(api_, context_);
    if (!current.status().ok()) return current.status();
    int capture = 0;
    SORTITION_CUDA_RETURN_IF_ERROR(api_, StreamIsCapturing(stream, &capture));
    if (capture != 0) return absl::FailedPreconditionError("stream: captures a graph");
    SORTITION_CUDA_RETURN_IF_ERROR(
        api_, StreamWaitValue32(stream, memory_ + bytes(), value, devices::cuda::kWaitUntilNotBefore));
  }
  value_ = value;
  {
    absl::MutexLock lock(&mutex_);
    unwritten_.push_back({value});
  }
  absl::Status submitted =
      client->StepAsync(batch, options, [this, value, done = std::move(done)](std::vector<RowResult> results) mutable {
        End(value, StepResult{std::move(results), std::move(done)});
      });
  if (!submitted.ok()) End(value, std::nullopt);
  return submitted;
}

void CudaResults::End(uint32_t value, std::optional<StepResult> result) {
  std::vector<StepResult> written;
  {
    absl::MutexLock lock(&mutex_);
    const auto ended = std::ranges::find(unwritten_, value, &Unwritten::value);
    ended->is_over = true;
    ended->result = std::move(result);
    while (!unwritten_.empty() && unwritten_.front().is_over) {
      Unwritten& step = unwritten_.front();
      // Errors are ignored: a lost device has no work that waits.
      Write(step).IgnoreError();
      if (step.result) written.push_back(*std::move(step.result));
      unwritten_.pop_front();
    }
  }
  // The last of these calls may destroy this object.
  for (StepResult& one : written) std::move(one.done)(std::move(one.results));
}

absl::Status CudaResults::Write(const Unwritten& step) {
  const CurrentContext current(api_, context_);
  if (!current.status().ok()) return current.status();
  if (step.result) {
    const std::vector<RowResult>& results = step.result->results;
    // The previous write from the staging memory must have ended.
    SORTITION_CUDA_RETURN_IF_ERROR(api_, StreamSynchronize(stream_));
    for (uint32_t i = 0; i < rows_; ++i) {
      const auto* const draw = i < results.size() ? std::get_if<v1::DrawResult>(&results[i]) : nullptr;
      const int32_t token = draw == nullptr ? -1 : static_cast<int32_t>(draw->token());
      const float logprob = draw == nullptr ? 0.0f : LogprobOf(*draw);
      std::memcpy(staging_ + i * sizeof(int32_t), &token, sizeof(int32_t));
      std::memcpy(staging_ + (uint64_t{rows_} + i) * sizeof(int32_t), &logprob, sizeof(float));
    }
    SORTITION_CUDA_RETURN_IF_ERROR(api_, MemcpyHtoDAsync(memory_, staging_, bytes(), stream_));
  }
  SORTITION_CUDA_RETURN_IF_ERROR(api_, StreamWriteValue32(stream_, memory_ + bytes(), step.value, 0));
  return absl::OkStatus();
}

}  // namespace sortition::client
