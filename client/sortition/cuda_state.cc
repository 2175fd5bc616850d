// Allocates memory, and checks and stores callers' settings.
#include "client/sortition/cuda_state.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/law/row_law.h"

namespace sortition {

using devices::cuda::Context;
using devices::cuda::CurrentContext;

namespace {

absl::Status CheckLimits(const CudaLimits& limits) {
  if (limits.rows < 1 || limits.rows > 65535) return absl::InvalidArgumentError("limits.rows is not in [1, 65535]");
  if (limits.vocabulary < 1 || limits.vocabulary > kernels::kMaxVocabulary) {
    return absl::InvalidArgumentError(absl::StrCat("limits.vocabulary is not in [1, ", kernels::kMaxVocabulary, "]"));
  }
  if (limits.edits > limits.vocabulary) return absl::InvalidArgumentError("limits.edits is above limits.vocabulary");
  if (limits.top > kernels::kMaxTopLogprobs) {
    return absl::InvalidArgumentError(absl::StrCat("limits.top is above ", kernels::kMaxTopLogprobs));
  }
  if (limits.kept > limits.vocabulary) return absl::InvalidArgumentError("limits.kept is above limits.vocabulary");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaSampler::State>> CudaSampler::State::Create(std::shared_ptr<Context> context,
                                                                               const CudaLimits& limits,
                                                                               bool takes_null_stream) {
  if (absl::Status status = CheckLimits(limits); !status.ok()) return status;
  std::unique_ptr<State> state(new State(std::move(context), limits, takes_null_stream));
  if (absl::Status status = state->Open(); !status.ok()) return status;
  return state;
}

CudaSampler::State::State(std::shared_ptr<Context> context, const CudaLimits& limits, bool takes_null_stream)
    : context_(std::move(context)), limits_(limits), takes_null_stream_(takes_null_stream), rows_(limits.rows) {
  nothing_.parameters.greedy = true;
  nothing_.parameters.mask_nan = true;
  nothing_.is_set = true;
}

uint64_t CudaSampler::State::ScratchBytes() const {
  return uint64_t{4} * kernels::cuda::LayScratch(kernels::cuda::GroupsOf(limits_.vocabulary), limits_.edits).words;
}

absl::Status CudaSampler::State::Open() {
  const CurrentContext current(*context_);
  if (!current.status().ok()) return current.status();
  SORTITION_CUDA_RETURN_IF_ERROR(api(), MemAlloc(&memory_, Bytes()));
  absl::Status cleared = devices::cuda::Clear(api(), memory_ + SequencesOffset(), ScratchOffset() - SequencesOffset());
  if (!cleared.ok()) return cleared;
  for (Stage& stage : stages_) {
    void* memory = nullptr;
    SORTITION_CUDA_RETURN_IF_ERROR(api(), MemHostAlloc(&memory, StatesOffset(), 0));
    stage.memory = static_cast<std::byte*>(memory);
    SORTITION_CUDA_RETURN_IF_ERROR(api(), EventCreate(&stage.done, devices::cuda::kEventDefault));
  }
  return absl::OkStatus();
}

CudaSampler::State::~State() {
  const CurrentContext current(*context_);
  // Waits for all work of the device first.
  if (memory_ != 0) api().MemFree(memory_);
  for (const Stage& stage : stages_) {
    if (stage.done != nullptr) api().EventDestroy(stage.done);
    if (stage.memory != nullptr) api().MemFreeHost(stage.memory);
  }
  for (const Copy& copy : copies_) {
    if (copy.done != nullptr) api().EventDestroy(copy.done);
    if (copy.memory != nullptr) api().MemFreeHost(copy.memory);
  }
}

absl::Status CudaSampler::State::CheckOnDevice(const void* pointer, const char* name) const {
  using devices::cuda::MemoryType;
  using devices::cuda::PointerAttribute;
  const absl::Status refused = absl::InvalidArgumentError(
      absl::StrCat(name, " is not in the memory of CUDA device ", context_->hardware().index));
  int device = -1;
  // Pinned memory of the host also belongs to a device.
  MemoryType type = MemoryType::kHost;
  const devices::cuda::Result known =
      api().PointerGetAttribute(&device, PointerAttribute::kDeviceOrdinal, ToDevicePointer(pointer));
  if (known == devices::cuda::Result::kInvalidValue) return refused;
  if (absl::Status status = ToStatus(api(), known, "cuPointerGetAttribute"); !status.ok()) return status;
  SORTITION_CUDA_RETURN_IF_ERROR(api(),
                                 PointerGetAttribute(&type, PointerAttribute::kMemoryType, ToDevicePointer(pointer)));
  return type == MemoryType::kDevice && device == int(context_->hardware().index) ? absl::OkStatus() : refused;
}

absl::Status CudaSampler::State::CheckStream(CUstream_st* stream, bool may_capture) const {
  if (!takes_null_stream_ && (stream == nullptr || stream == devices::cuda::kStreamLegacy)) {
    return absl::InvalidArgumentError("stream: the null stream waits for all others and cannot be captured");
  }
  if (may_capture) return absl::OkStatus();
  int capture = 0;
  SORTITION_CUDA_RETURN_IF_ERROR(api(), StreamIsCapturing(stream, &capture));
  if (capture == 0) return absl::OkStatus();
  return absl::FailedPreconditionError("stream: captures a graph, whose replays would copy what the host then holds");
}

absl::Status CudaSampler::State::CheckRow(uint32_t row) const {
  if (row < limits_.rows) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("row is ", row, ", and limits.rows is ", limits_.rows));
}

absl::Status CudaSampler::State::CheckOrder(const CudaBatch& batch, std::span<const uint32_t> rows) const {
  if (rows.empty()) return absl::OkStatus();
  if (rows.size() != batch.rows) {
    return absl::InvalidArgumentError(absl::StrCat("rows are ", rows.size(), ", and batch.rows is ", batch.rows));
  }
  std::vector<bool> is_named(limits_.rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] == kNoRow) continue;
    if (rows[i] >= limits_.rows || is_named[rows[i]]) {
      return absl::InvalidArgumentError(
          absl::StrCat("rows[", i, "] is ", rows[i], ", named twice or not below limits.rows, ", limits_.rows));
    }
    is_named[rows[i]] = true;
  }
  return absl::OkStatus();
}

absl::Status CudaSampler::State::Bind(const CudaBatch& batch, std::span<const uint32_t> rows) {
  const uint64_t row_bytes = uint64_t{batch.vocabulary} * kernels::ElementBytes(batch.dtype);
  if (batch.rows < 1 || batch.rows > limits_.rows) {
    return absl::InvalidArgumentError(absl::StrCat("batch.rows is ", batch.rows, ", not in [1, ", limits_.rows, "]"));
  }
  if (batch.vocabulary < 1 || batch.vocabulary > limits_.vocabulary) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch.vocabulary is ", batch.vocabulary, ", not in [1, ", limits_.vocabulary, "]"));
  }
  if (ToDevicePointer(batch.logits) % kernels::cuda::kLogitsAlignment != 0 ||
      batch.row_bytes % kernels::cuda::kLogitsAlignment != 0 || (batch.rows > 1 && batch.row_bytes < row_bytes)) {
    return absl::InvalidArgumentError(
        "batch.logits, batch.row_bytes: rows must begin at multiples of 16 bytes and not overlap");
  }
  if (absl::Status status = CheckOrder(batch, rows); !status.ok()) return status;
  const uint64_t words = (batch.vocabulary + 31) / 32;
  if (batch.allowed_bits != nullptr && batch.allowed_words != 0 && batch.allowed_words < words) {
    return absl::InvalidArgumentError(absl::StrCat("batch.allowed_words is below ", words));
  }
  const uint64_t draft_bytes = uint64_t{batch.vocabulary} * kernels::ElementBytes(batch.draft_dtype);
  if (batch.draft != nullptr && (ToDevicePointer(batch.draft) % 4 != 0 || batch.draft_row_bytes % 4 != 0 ||
                                 (batch.rows > 1 && batch.draft_row_bytes < draft_bytes))) {
    return absl::InvalidArgumentError(
        "batch.draft, batch.draft_row_bytes: rows must begin at multiples of 4 bytes and not overlap");
  }
  if (ToDevicePointer(batch.outputs) % alignof(kernels::cuda::RawOutput) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch.outputs is not a multiple of ", alignof(kernels::cuda::RawOutput), " bytes"));
  }
  const struct {
    const void* pointer;
    const char* name;
    bool is_needed;
  } pointers[] = {{batch.logits, "batch.logits", true},
                  {batch.tokens, "batch.tokens", true},
                  {batch.logprobs, "batch.logprobs", false},
                  {batch.allowed_bits, "batch.allowed_bits", false},
                  {batch.positions, "batch.positions", false},
                  {batch.given, "batch.given", false},
                  {batch.draft, "batch.draft", false},
                  {batch.accepted, "batch.accepted", false},
                  {batch.outputs, "batch.outputs", false},
                  {batch.raw_top, "batch.raw_top", false},
                  {batch.processed_top, "batch.processed_top", false}};
  const CurrentContext current(*context_);
  if (!current.status().ok()) return current.status();
  for (const auto& [pointer, name, is_needed] : pointers) {
    if (pointer == nullptr && !is_needed) continue;
    if (ToDevicePointer(pointer) % alignof(uint32_t) != 0) {
      return absl::InvalidArgumentError(absl::StrCat(name, " is not a multiple of ", alignof(uint32_t), " bytes"));
    }
    if (absl::Status status = CheckOnDevice(pointer, name); !status.ok()) return status;
  }
  // The launches take these two addresses, and no upload does.
  CudaBatch uploaded = batch_;
  uploaded.tokens = batch.tokens;
  uploaded.logprobs = batch.logprobs;
  is_uploaded_ = is_uploaded_ && uploaded == batch && std::ranges::equal(order_, rows);
  batch_ = batch;
  order_.assign(rows.begin(), rows.end());
  return absl::OkStatus();
}

absl::Status CudaSampler::State::SetRow(uint32_t row, const kernels::RowParameters& parameters,
                                        const kernels::NoiseKey& noise) {
  if (absl::Status status = CheckRow(row); !status.ok()) return status;
  if (parameters.kept_tokens && law::MostKept(parameters, limits_.vocabulary) > limits_.kept) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameters: may keep more tokens than limits.kept, ", limits_.kept));
  }
  if (parameters.raw_top > limits_.top || parameters.processed_top > limits_.top) {
    return absl::InvalidArgumentError(absl::StrCat("parameters: raw_top or processed_top is above ", limits_.top));
  }
  if (parameters.tempered_logprob || parameters.kept_log_mass) {
    return absl::InvalidArgumentError("parameters: tempered_logprob and kept_log_mass are not built");
  }
  Row& one = rows_[row];
  one.parameters = parameters;
  one.noise = noise;
  one.is_set = true;
  if (one.has_sequence) {
    one.has_sequence = false;
    one.has_new_sequence = true;
    one.edits.clear();
  }
  return SetSamplerState(row, kernels::InitialSamplerState(parameters.chain));
}

absl::Status CudaSampler::State::SetTask(uint32_t row, kernels::RowTask task) {
  if (absl::Status status = CheckRow(row); !status.ok()) return status;
  if (absl::Status status = CheckNoSequence(row, "SetTask"); !status.ok()) return status;
  rows_[row].task = task;
  is_uploaded_ = false;
  return absl::OkStatus();
}

absl::Status CudaSampler::State::SetSamplerState(uint32_t row, uint64_t state) {
  if (absl::Status status = CheckRow(row); !status.ok()) return status;
  if (absl::Status status = CheckNoSequence(row, "SetSamplerState"); !status.ok()) return status;
  rows_[row].sampler_state = state;
  rows_[row].has_new_state = true;
  is_uploaded_ = false;
  return absl::OkStatus();
}

}  // namespace sortition
