// Checks, uploads, launches.
#include "client/sortition/cuda_state.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace sortition {

using devices::cuda::Api;
using devices::cuda::Context;
using devices::cuda::CurrentContext;
using devices::cuda::DevicePointer;
using kernels::cuda::ChainedInput;
using kernels::cuda::ChainedOutput;
using kernels::cuda::RowInput;
using kernels::cuda::RowOutput;
using kernels::cuda::TopToken;

namespace {

DevicePointer AddressOf(const void* pointer) { return reinterpret_cast<DevicePointer>(pointer); }
template <typename T>
T* PointerTo(DevicePointer address) {
  return reinterpret_cast<T*>(address);
}

absl::Status CheckLimits(const CudaLimits& limits) {
  if (limits.rows < 1 || limits.rows > 65535) return absl::InvalidArgumentError("limits.rows is not in [1, 65535]");
  if (limits.vocabulary < 1 || limits.vocabulary > kernels::kMaxVocabulary) {
    return absl::InvalidArgumentError(absl::StrCat("limits.vocabulary is not in [1, ", kernels::kMaxVocabulary, "]"));
  }
  if (limits.patches > limits.vocabulary)
    return absl::InvalidArgumentError("limits.patches is above limits.vocabulary");
  if (limits.top > kernels::kMaxTopLogprobs) {
    return absl::InvalidArgumentError(absl::StrCat("limits.top is above ", kernels::kMaxTopLogprobs));
  }
  if (limits.kept > limits.vocabulary) return absl::InvalidArgumentError("limits.kept is above limits.vocabulary");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaSampler::State>> CudaSampler::State::Create(std::shared_ptr<Context> context,
                                                                               const CudaLimits& limits) {
  if (absl::Status status = CheckLimits(limits); !status.ok()) return status;
  std::unique_ptr<State> state(new State(std::move(context), limits));
  if (absl::Status status = state->Open(); !status.ok()) return status;
  return state;
}

CudaSampler::State::State(std::shared_ptr<Context> context, const CudaLimits& limits)
    : context_(std::move(context)), limits_(limits), rows_(limits.rows) {}

uint64_t CudaSampler::State::ScratchBytes() const {
  return uint64_t{4} * kernels::cuda::LayScratch(kernels::cuda::GroupsOf(limits_.vocabulary), limits_.patches).words;
}

absl::Status CudaSampler::State::Open() {
  const CurrentContext current(*context_);
  if (!current.status().ok()) return current.status();
  SORTITION_CUDA_RETURN_IF_ERROR(api(), MemAlloc(&memory_, Bytes()));
  SORTITION_CUDA_RETURN_IF_ERROR(api(), MemsetD8(memory_ + StatesOffset(), 0, ScratchOffset() - StatesOffset()));
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
  for (const Stage& stage : stages_) {
    if (stage.done != nullptr) api().EventDestroy(stage.done);
    if (stage.memory != nullptr) api().MemFreeHost(stage.memory);
  }
  if (memory_ != 0) api().MemFree(memory_);
}

absl::Status CudaSampler::State::CheckOnDevice(const void* pointer, const char* name) const {
  int device = -1;
  const devices::cuda::Result result =
      api().PointerGetAttribute(&device, devices::cuda::PointerAttribute::kDeviceOrdinal, AddressOf(pointer));
  if (result == devices::cuda::Result::kSuccess && device == int(context_->hardware().index)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is not in the memory of CUDA device ", context_->hardware().index));
}

absl::Status CudaSampler::State::CheckStream(CUstream_st* stream, bool may_capture) const {
  if (stream == nullptr) {
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

absl::Status CudaSampler::State::Bind(const CudaBatch& batch) {
  const uint64_t row_bytes = uint64_t{batch.vocabulary} * kernels::ElementBytes(batch.dtype);
  if (batch.rows < 1 || batch.rows > limits_.rows) {
    return absl::InvalidArgumentError(absl::StrCat("batch.rows is ", batch.rows, ", not in [1, ", limits_.rows, "]"));
  }
  if (batch.vocabulary < 1 || batch.vocabulary > limits_.vocabulary) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch.vocabulary is ", batch.vocabulary, ", not in [1, ", limits_.vocabulary, "]"));
  }
  if (AddressOf(batch.logits) % kernels::cuda::kLogitsAlignment != 0 ||
      batch.row_bytes % kernels::cuda::kLogitsAlignment != 0 || (batch.rows > 1 && batch.row_bytes < row_bytes)) {
    return absl::InvalidArgumentError(
        "batch.logits, batch.row_bytes: rows must begin at multiples of 16 bytes and not overlap");
  }
  const uint64_t words = (batch.vocabulary + 31) / 32;
  if (batch.allowed_bits != nullptr && batch.allowed_words != 0 && batch.allowed_words < words) {
    return absl::InvalidArgumentError(absl::StrCat("batch.allowed_words is below ", words));
  }
  const struct {
    const void* pointer;
    const char* name;
    bool is_needed;
  } pointers[] = {{batch.logits, "batch.logits", true},
                  {batch.tokens, "batch.tokens", true},
                  {batch.logprobs, "batch.logprobs", false},
                  {batch.allowed_bits, "batch.allowed_bits", false},
                  {batch.positions, "batch.positions", false}};
  const CurrentContext current(*context_);
  if (!current.status().ok()) return current.status();
  for (const auto& [pointer, name, is_needed] : pointers) {
    if (pointer == nullptr && !is_needed) continue;
    if (absl::Status status = CheckOnDevice(pointer, name); !status.ok()) return status;
  }
  batch_ = batch;
  is_uploaded_ = false;
  return absl::OkStatus();
}

absl::Status CudaSampler::State::SetRow(uint32_t row, const kernels::RowParameters& parameters,
                                        const kernels::NoiseKey& noise) {
  if (absl::Status status = CheckRow(row); !status.ok()) return status;
  if (parameters.kept_tokens && kernels::cuda::MostKept(parameters, limits_.vocabulary) > limits_.kept) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameters: may keep more tokens than limits.kept, ", limits_.kept));
  }
  if (parameters.raw_top > limits_.top || parameters.processed_top > limits_.top) {
    return absl::InvalidArgumentError(absl::StrCat("parameters: raw_top or processed_top is above ", limits_.top));
  }
  rows_[row].parameters = parameters;
  rows_[row].noise = noise;
  rows_[row].is_set = true;
  return SetSamplerState(row, kernels::InitialSamplerState(parameters.chain));
}

absl::Status CudaSampler::State::SetSamplerState(uint32_t row, uint64_t state) {
  if (absl::Status status = CheckRow(row); !status.ok()) return status;
  rows_[row].sampler_state = state;
  rows_[row].has_new_state = true;
  is_uploaded_ = false;
  return absl::OkStatus();
}

absl::Status CudaSampler::State::SetPatches(uint32_t row, std::span<const kernels::TokenPatch> patches) {
  if (absl::Status status = CheckRow(row); !status.ok()) return status;
  if (patches.size() > limits_.patches) {
    return absl::InvalidArgumentError(absl::StrCat("patches are ", patches.size(), ", at most ", limits_.patches));
  }
  for (size_t i = 0; i < patches.size(); ++i) {
    if (patches[i].token < limits_.vocabulary && (i == 0 || patches[i - 1].token < patches[i].token)) continue;
    return absl::InvalidArgumentError(absl::StrCat("patches[", i, "]: not sorted by token, or not of the vocabulary"));
  }
  rows_[row].patches.assign(patches.begin(), patches.end());
  rows_[row].has_new_patches = true;
  is_uploaded_ = false;
  return absl::OkStatus();
}

RowInput CudaSampler::State::InputOf(uint32_t index) const {
  const Row& row = rows_[index];
  const bool is_chained = kernels::cuda::IsChained(row.parameters, kernels::RowTask::kDraw, false);
  RowInput input = kernels::cuda::InputOf(row.parameters, row.noise, batch_.dtype, batch_.vocabulary, is_chained);
  input.logits = PointerTo<const void>(AddressOf(batch_.logits) + batch_.row_bytes * index);
  if (batch_.allowed_bits != nullptr) input.allowed = batch_.allowed_bits + batch_.allowed_words * index;
  if (batch_.positions != nullptr) input.position_at = batch_.positions + index;
  input.patches = PointerTo<const kernels::TokenPatch>(memory_ + InputsBytes() +
                                                       sizeof(kernels::TokenPatch) * limits_.patches * index);
  // Tokens beyond the batch's vocabulary are padding.
  input.patch_count = uint32_t(
      std::ranges::lower_bound(row.patches, batch_.vocabulary, {}, &kernels::TokenPatch::token) - row.patches.begin());
  input.scratch = PointerTo<uint32_t>(memory_ + ScratchOffset() + ScratchBytes() * index);
  if (is_chained) {
    input.chained = PointerTo<const ChainedInput>(memory_ + ChainedOffset() + sizeof(ChainedInput) * index);
  }
  input.raw_top = PointerTo<TopToken>(memory_ + TopsOffset() + TopsBytes() * 2 * index);
  input.processed_top = PointerTo<TopToken>(memory_ + TopsOffset() + TopsBytes() * (2 * index + 1));
  return input;
}

ChainedInput CudaSampler::State::ChainedInputOf(uint32_t index) const {
  ChainedInput chained = kernels::cuda::ChainedOf(rows_[index].parameters);
  chained.sampler_state_at = PointerTo<uint64_t>(memory_ + SamplerStatesOffset() + sizeof(uint64_t) * index);
  chained.output = PointerTo<ChainedOutput>(memory_ + ChainedOutputsOffset() + sizeof(ChainedOutput) * index);
  if (rows_[index].parameters.kept_tokens) {
    chained.kept = PointerTo<kernels::TokenBits>(memory_ + KeptOffset() + KeptBytes() * index);
  }
  return chained;
}

absl::Status CudaSampler::State::Move(const Stage& stage, uint64_t offset, uint64_t bytes, CUstream_st* stream) const {
  SORTITION_CUDA_RETURN_IF_ERROR(api(), MemcpyHtoDAsync(memory_ + offset, stage.memory + offset, bytes, stream));
  return absl::OkStatus();
}

absl::Status CudaSampler::State::Upload(CUstream_st* stream) {
  if (absl::Status status = CheckStream(stream, false); !status.ok()) return status;
  if (batch_.rows == 0) return absl::FailedPreconditionError("Upload before Bind");
  for (uint32_t row = 0; row < batch_.rows; ++row) {
    if (!rows_[row].is_set) return absl::FailedPreconditionError(absl::StrCat("row ", row, " was never set"));
  }
  const CurrentContext current(*context_);
  if (!current.status().ok()) return current.status();
  Stage& stage = stages_[next_stage_++ % stages_.size()];
  SORTITION_CUDA_RETURN_IF_ERROR(api(), EventSynchronize(stage.done));
  needed_ = {};
  for (uint32_t row = 0; row < batch_.rows; ++row) {
    const RowInput input = InputOf(row);
    needed_ |= kernels::cuda::NeededBy(input);
    std::memcpy(stage.memory + sizeof(RowInput) * row, &input, sizeof(input));
    const ChainedInput chained = ChainedInputOf(row);
    std::memcpy(stage.memory + ChainedOffset() + sizeof(ChainedInput) * row, &chained, sizeof(chained));
  }
  absl::Status status = Move(stage, 0, sizeof(RowInput) * batch_.rows, stream);
  if (status.ok() && needed_.chain) {
    status = Move(stage, ChainedOffset(), sizeof(ChainedInput) * batch_.rows, stream);
  }
  for (uint32_t row = 0; row < limits_.rows; ++row) {
    if (rows_[row].has_new_patches && !rows_[row].patches.empty()) {
      const std::span<const kernels::TokenPatch> patches = rows_[row].patches;
      const uint64_t at = InputsBytes() + sizeof(kernels::TokenPatch) * limits_.patches * row;
      std::memcpy(stage.memory + at, patches.data(), patches.size_bytes());
      status = Move(stage, at, patches.size_bytes(), stream);
    }
    if (status.ok() && rows_[row].has_new_state && kernels::KeepsSamplerState(rows_[row].parameters.chain)) {
      const uint64_t at = SamplerStatesOffset() + sizeof(uint64_t) * row;
      std::memcpy(stage.memory + at, &rows_[row].sampler_state, sizeof(uint64_t));
      status = Move(stage, at, sizeof(uint64_t), stream);
    }
    if (!status.ok()) break;
    rows_[row].has_new_patches = false;
    rows_[row].has_new_state = false;
  }
  if (!status.ok()) return status;
  SORTITION_CUDA_RETURN_IF_ERROR(api(), EventRecord(stage.done, stream));
  is_uploaded_ = true;
  return absl::OkStatus();
}

absl::Status CudaSampler::State::Sample(CUstream_st* stream) {
  if (absl::Status status = CheckStream(stream, true); !status.ok()) return status;
  if (!is_uploaded_) return absl::FailedPreconditionError("Sample before Upload of what was last set");
  const CurrentContext current(*context_);
  if (!current.status().ok()) return current.status();
  kernels::cuda::BatchView view;
  view.inputs = PointerTo<const RowInput>(memory_);
  view.states = PointerTo<kernels::cuda::RowState>(memory_ + StatesOffset());
  view.outputs = PointerTo<RowOutput>(memory_ + OutputsOffset());
  view.tokens = batch_.tokens;
  view.logprobs = batch_.logprobs;
  const kernels::cuda::Geometry geometry = kernels::cuda::GeometryOf(
      batch_.rows, kernels::cuda::GroupsOf(batch_.vocabulary), context_->hardware().multiprocessors);
  view.chunk_groups = geometry.chunk_groups;
  return context_->Launch(view, batch_.rows, geometry.chunks, needed_, stream);
}

absl::Status CudaSampler::State::Download(CUstream_st* stream, std::span<kernels::RowAnswer> answers) {
  if (absl::Status status = CheckStream(stream, false); !status.ok()) return status;
  if (answers.empty()) return absl::OkStatus();
  if (!is_uploaded_ || answers.size() > batch_.rows) {
    return absl::FailedPreconditionError(absl::StrCat("Download of ", answers.size(), " rows that were not sampled"));
  }
  const CurrentContext current(*context_);
  if (!current.status().ok()) return current.status();
  std::vector<std::byte> outputs(Bytes() - OutputsOffset());
  SORTITION_CUDA_RETURN_IF_ERROR(api(),
                                 MemcpyDtoHAsync(outputs.data(), memory_ + OutputsOffset(), outputs.size(), stream));
  SORTITION_CUDA_RETURN_IF_ERROR(api(), StreamSynchronize(stream));
  for (uint32_t row = 0; row < answers.size(); ++row) {
    const auto at = [&](uint64_t offset) { return outputs.data() + (offset - OutputsOffset()); };
    const std::byte* const tops = at(TopsOffset() + TopsBytes() * 2 * row);
    kernels::cuda::RowResult result;
    result.output = reinterpret_cast<const RowOutput*>(outputs.data()) + row;
    result.raw_top = reinterpret_cast<const TopToken*>(tops);
    result.processed_top = reinterpret_cast<const TopToken*>(tops + TopsBytes());
    if (kernels::cuda::IsChained(rows_[row].parameters, kernels::RowTask::kDraw, false)) {
      result.chained = reinterpret_cast<const ChainedOutput*>(at(ChainedOutputsOffset())) + row;
      result.kept = reinterpret_cast<const kernels::TokenBits*>(at(KeptOffset() + KeptBytes() * row));
    }
    answers[row] = kernels::cuda::AnswerOf(rows_[row].parameters, result);
  }
  return absl::OkStatus();
}

}  // namespace sortition
