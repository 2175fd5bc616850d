// A compact row is a description of a draw. Without sums, one kernel describes a draw among the first tokens. With
// sums, the draw has no filters, and its raw distribution has the first tokens.
#include "client/sortition/cuda_producer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/sortition/convert.h"
#include "kernels/law/compact.h"
#include "kernels/law/row_law.h"

namespace sortition {

using devices::cuda::Context;
using devices::cuda::CurrentContext;
using kernels::cuda::RawOutput;
using kernels::cuda::TopToken;

absl::StatusOr<std::unique_ptr<CudaProducer::Memory>> CudaProducer::Memory::Create(std::shared_ptr<Context> context,
                                                                                   const CudaProducerLimits& limits) {
  if (limits.first < 1 || limits.first >= kernels::kMaxTopLogprobs) {
    return absl::InvalidArgumentError(absl::StrCat("limits.first is not in [1, ", kernels::kMaxTopLogprobs - 1, "]"));
  }
  const CudaLimits sampler = {.rows = limits.rows, .vocabulary = limits.vocabulary, .top = limits.first + 1};
  std::unique_ptr<Memory> memory(new Memory(context, limits));
  auto state = CudaSampler::State::Create(std::move(context), sampler);
  if (!state.ok()) return state.status();
  memory->sampler_ = *std::move(state);
  if (absl::Status status = memory->Open(); !status.ok()) return status;
  return memory;
}

absl::Status CudaProducer::Memory::Open() {
  const CurrentContext current(*context_);
  if (!current.status().ok()) return current.status();
  SORTITION_CUDA_RETURN_IF_ERROR(context_->api(), MemAlloc(&device_, Bytes() + TokensBytes()));
  void* pinned = nullptr;
  SORTITION_CUDA_RETURN_IF_ERROR(context_->api(), MemHostAlloc(&pinned, Bytes(), 0));
  pinned_ = static_cast<std::byte*>(pinned);
  return absl::OkStatus();
}

CudaProducer::Memory::~Memory() {
  const CurrentContext current(*context_);
  // Waits for all work of the device first.
  if (device_ != 0) context_->api().MemFree(device_);
  if (pinned_ != nullptr) context_->api().MemFreeHost(pinned_);
}

absl::Status CudaProducer::Memory::State(CUstream_st* stream, const CudaLogits& logits,
                                         std::span<const kernels::RowParameters> parameters, bool sums) {
  asked_.clear();
  if (parameters.size() != logits.rows) {
    return absl::InvalidArgumentError(absl::StrCat(parameters.size(), " parameters for ", logits.rows, " rows"));
  }
  CudaBatch batch = {.logits = logits.logits,
                     .row_bytes = logits.row_bytes,
                     .dtype = logits.dtype,
                     .rows = logits.rows,
                     .vocabulary = logits.vocabulary};
  batch.tokens = PointerTo<int32_t>(device_ + Bytes());
  batch.outputs = PointerTo<RawOutput>(device_);
  batch.raw_top = PointerTo<TopToken>(device_ + TopsOffset());
  batch.processed_top = PointerTo<TopToken>(device_ + ProcessedOffset());
  if (absl::Status status = sampler_->Bind(batch); !status.ok()) return status;
  std::vector<Asked> asked;
  for (uint32_t row = 0; row < logits.rows; ++row) {
    kernels::RowParameters described;
    described.mask_nan = parameters[row].mask_nan;
    const auto temperature = law::StatedTemperature(parameters[row]);
    asked.push_back({sums, sums && temperature});
    if (sums) {
      described.raw_logprob = true;
      described.raw_top = tops();
      described.processed_logprob = asked.back().own_sum;
      if (temperature) {
        described.multiplier = temperature->multiplier;
        described.exponent = temperature->exponent;
        described.window = temperature->window;
      }
    } else {
      described.top_k = tops();
      described.processed_logprob = true;
      described.processed_top = tops();
    }
    if (absl::Status status = sampler_->SetRow(row, described, {}); !status.ok()) return status;
  }
  if (absl::Status status = sampler_->Upload(stream); !status.ok()) return status;
  if (absl::Status status = sampler_->Sample(stream); !status.ok()) return status;
  const CurrentContext current(*context_);
  if (!current.status().ok()) return current.status();
  const auto fetch = [&](uint64_t offset, uint64_t bytes) -> absl::Status {
    SORTITION_CUDA_RETURN_IF_ERROR(context_->api(), MemcpyDtoHAsync(pinned_ + offset, device_ + offset, bytes, stream));
    return absl::OkStatus();
  };
  if (absl::Status status = fetch(0, sizeof(RawOutput) * logits.rows); !status.ok()) return status;
  if (absl::Status status = fetch(sums ? TopsOffset() : ProcessedOffset(), TopsBytes() * logits.rows); !status.ok()) {
    return status;
  }
  asked_ = std::move(asked);
  return absl::OkStatus();
}

absl::Status CudaProducer::Memory::Take(uint32_t row, kernels::StatedRow* stated, bool* fails) const {
  if (row >= asked_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("row is ", row, ", and ", asked_.size(), " rows are stated"));
  }
  const Asked& asked = asked_[row];
  const RawOutput& output = *(reinterpret_cast<const RawOutput*>(pinned_) + row);
  *stated = {};
  const bool has_none = output.error == kernels::RowFault::kNoLiveToken;
  *fails = !has_none && output.error != kernels::RowFault::kNone;
  stated->is_whole = has_none;
  if (*fails || has_none) return absl::OkStatus();
  const uint64_t offset = (asked.sums ? TopsOffset() : ProcessedOffset()) + TopsBytes() * row;
  const auto* const listed = reinterpret_cast<const TopToken*>(pinned_ + offset);
  const uint32_t count = asked.sums ? output.raw.top_count : output.processed.top_count;
  stated->is_whole = count <= limits_.first;
  for (uint32_t i = 0; i < std::min(count, limits_.first); ++i) {
    stated->first.push_back({listed[i].token, listed[i].bits});
  }
  if (asked.sums) stated->unit_sum = output.raw.weight_sum;
  if (asked.own_sum) stated->sum = output.processed.weight_sum;
  return absl::OkStatus();
}

Status CudaProducer::Create(int device, const CudaProducerLimits& limits, std::unique_ptr<CudaProducer>* producer) {
  auto context = Context::OfDevice(device);
  if (!context.ok()) return ToPublic(context.status());
  auto memory = Memory::Create(*std::move(context), limits);
  if (!memory.ok()) return ToPublic(memory.status());
  *producer = std::make_unique<CudaProducer>(*std::move(memory));
  return {};
}

CudaProducer::CudaProducer(std::unique_ptr<Memory> memory) : memory_(std::move(memory)) {}
CudaProducer::~CudaProducer() = default;

Status CudaProducer::State(CUstream_st* stream, const CudaLogits& logits,
                           std::span<const kernels::RowParameters> parameters, bool sums) {
  return ToPublic(memory_->State(stream, logits, parameters, sums));
}
Status CudaProducer::Take(uint32_t row, kernels::StatedRow* stated, bool* fails) const {
  return ToPublic(memory_->Take(row, stated, fails));
}

}  // namespace sortition
