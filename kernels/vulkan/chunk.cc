// Layout of rows.
#include "kernels/vulkan/chunk.h"

#include <algorithm>
#include <cstring>

#include "kernels/check_row.h"
#include "kernels/law/row_law.h"
#include "kernels/vulkan/extras.h"

namespace sortition::kernels::vulkan {
namespace {

constexpr uint64_t kQuadBytes = 16;

uint32_t ElementOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return kElementF32;
    case DType::kF16:
      return kElementF16;
    case DType::kBF16:
      return kElementBf16;
  }
  __builtin_unreachable();
}

uint32_t FormOf(DraftDistribution::Form form) {
  switch (form) {
    case DraftDistribution::Form::kCertain:
      return kDraftCertain;
    case DraftDistribution::Form::kDense:
      return kDraftDense;
    case DraftDistribution::Form::kSparse:
      return kDraftSparse;
  }
  __builtin_unreachable();
}

RowInput MakeRowInput(const RowRequest& request) {
  const RowParameters& parameters = *request.parameters;
  RowInput input = {};
  input.dtype = ElementOf(request.dtype);
  input.vocabulary = request.live_vocabulary;
  if (parameters.mask_nan) input.flags |= kFlagMaskNan;
  if (parameters.greedy) input.flags |= kFlagGreedy;
  if (HasExtras(request)) input.flags |= kFlagVisible;
  if (parameters.raw_logprob) input.flags |= kFlagRaw;
  if (request.task == RowTask::kScore) input.flags |= kFlagScore;
  if (request.task == RowTask::kVerify) input.flags |= kFlagVerify;
  if (!parameters.greedy) {
    if (parameters.processed_logprob || parameters.kept_count) input.flags |= kFlagProcessed;
    if (parameters.entropy) input.flags |= kFlagEntropy;
    if (parameters.kept_tokens) input.flags |= kFlagKeptTokens;
    if (!parameters.chain.empty()) input.flags |= kFlagChain;
  }
  input.multiplier = parameters.multiplier;
  input.exponent = parameters.exponent;
  input.window = parameters.window;
  input.min_p_distance = parameters.min_p_distance;
  input.top_k = parameters.top_k < request.live_vocabulary ? parameters.top_k : 0;
  input.top_p = parameters.top_p;
  input.repetition = parameters.repetition;
  input.inverse_repetition = parameters.inverse_repetition;
  input.seed_low = uint32_t(request.noise.seed);
  input.seed_high = uint32_t(request.noise.seed >> 32);
  input.position = request.noise.position;
  input.stream = request.noise.stream;
  input.edit_count = uint32_t(request.edits.size());
  input.processed_top = parameters.greedy ? 0 : std::min(parameters.processed_top, request.live_vocabulary);
  input.raw_top = std::min(parameters.raw_top, request.live_vocabulary);
  input.requested_count = uint32_t(request.requested.size());
  input.given = request.given;
  input.draft_form = FormOf(request.draft.form);
  input.draft_dtype = ElementOf(request.draft.dtype);
  input.draft_count = uint32_t(request.draft.sparse_tokens.size());
  input.stage_count = uint32_t(parameters.chain.size());
  input.sampler_state_low = uint32_t(request.sampler_state);
  input.sampler_state_high = uint32_t(request.sampler_state >> 32);
  return input;
}

// Returns how many sums and searches a stage needs.
uint32_t TurnsOf(StageKind kind) {
  switch (law::CutOf(uint32_t(kind))) {
    case law::kCutFirst:
    case law::kCutNearest:
    case law::kCutHead:
      return 2;
    case law::kCutTerms:
      return 4;
    case law::kCutFallOff:
    case law::kCutCliff:
      return 5;
    default:
      return law::SumsOf(uint32_t(kind)) == law::kSumNothing ? 0 : 1;
  }
}

// Adds a turn for the first token, and one for the sum that mirostat needs at the end.
uint32_t TurnsOf(std::span<const Stage> chain) {
  uint32_t turns = 1;
  for (const Stage& stage : chain) turns += TurnsOf(stage.kind);
  return KeepsSamplerState(chain) ? turns + 1 : turns;
}

// Returns the bytes of a tensor of the row's size, in whole quads.
uint64_t TensorBytes(const RowRequest& request, DType dtype) {
  return (uint64_t{request.live_vocabulary} * ElementBytes(dtype) + kQuadBytes - 1) / kQuadBytes * kQuadBytes;
}

}  // namespace

uint64_t Chunk::Sizes::Largest() const { return std::max({logits, inputs, extras, scratch, outputs, tops}); }

bool Chunk::Add(const RowRequest& request, uint64_t most_bytes) {
  CheckRow(request);
  RowInput input = MakeRowInput(request);
  const uint32_t groups = (request.live_vocabulary + law::kGroupSize - 1) / law::kGroupSize;
  Sizes sizes = sizes_;
  input.logits = uint32_t(sizes.logits / kQuadBytes);
  sizes.logits += TensorBytes(request, request.dtype);
  if ((input.flags & kFlagVerify) != 0 && input.draft_form == kDraftDense) {
    input.draft = uint32_t(sizes.logits / kQuadBytes);
    sizes.logits += TensorBytes(request, request.draft.dtype);
  }
  input.visible = uint32_t(sizes.extras / 4);
  if (HasExtras(request)) sizes.extras += 4 * VisibleWords(request);
  input.edits = uint32_t(sizes.extras / 4);
  sizes.extras += uint64_t{4} * kEditWords * input.edit_count;
  input.scratch = uint32_t(sizes.scratch / 4);
  sizes.scratch += uint64_t{4} * KERNEL_SCRATCH_WORDS(groups, input.edit_count);
  input.processed_tops = uint32_t(sizes.tops / 8);
  sizes.tops += uint64_t{8} * input.processed_top;
  input.raw_tops = uint32_t(sizes.tops / 8);
  sizes.tops += uint64_t{8} * input.raw_top;
  input.requested = uint32_t(sizes.extras / 4);
  sizes.extras += uint64_t{4} * input.requested_count;
  if ((input.flags & kFlagVerify) != 0 && input.draft_form == kDraftSparse) {
    input.draft = uint32_t(sizes.extras / 4);
    sizes.extras += uint64_t{8} * input.draft_count;
  }
  input.stages = uint32_t(sizes.extras / 4);
  sizes.extras += uint64_t{4} * kStageWords * input.stage_count;
  if ((input.flags & kFlagProcessed) != 0) {
    input.processed_places = uint32_t(sizes.tops / 8);
    sizes.tops += uint64_t{8} * input.requested_count;
  }
  if ((input.flags & kFlagRaw) != 0) {
    input.raw_places = uint32_t(sizes.tops / 8);
    sizes.tops += uint64_t{8} * input.requested_count;
  }
  input.kept_tokens = uint32_t(sizes.tops / 8);
  if ((input.flags & kFlagKeptTokens) != 0) {
    sizes.tops += uint64_t{8} * law::MostKept(*request.parameters, request.live_vocabulary);
  }
  sizes.inputs += sizeof(RowInput);
  sizes.outputs += sizeof(RawOutput);
  if (sizes.Largest() > most_bytes) return false;

  sizes_ = sizes;
  max_vocabulary_ = std::max(max_vocabulary_, request.live_vocabulary);
  sections_ = std::max(sections_, (groups + kSectionGroups - 1) / kSectionGroups);
  edits_ = std::max(edits_, input.edit_count);
  const std::span<const Stage> chain = request.parameters->chain;
  if ((input.flags & kFlagChain) != 0) turns_ = std::max(turns_, TurnsOf(chain));
  Need(input, chain);
  requests_.push_back(&request);
  inputs_.push_back(input);
  return true;
}

void Chunk::Need(const RowInput& input, std::span<const Stage> chain) {
  const auto has = [&](uint32_t flags) { return (input.flags & flags) != 0; };
  const bool is_chained = has(kFlagChain);
  const auto need = [&](Shader shader, bool is_needed) {
    if (is_needed) needs_[TakesWholeRows(shader) && is_chained ? 1 : 0] |= 1u << int(shader);
  };
  // The condition of weigh.comp.
  const bool whole_sum =
      !has(kFlagGreedy | kFlagChain) && input.top_k == 0 && (input.top_p != 0 || has(kFlagProcessed | kFlagVerify));
  need(Shader::kRead, true);
  need(Shader::kEdit, input.edit_count != 0);
  need(Shader::kWeigh, has(kFlagRaw) || whole_sum);
  need(Shader::kSum, is_chained);
  need(Shader::kFallOff, std::ranges::any_of(chain, [](const Stage& s) {
         const uint32_t sums = law::SumsOf(uint32_t(s.kind));
         return sums == law::kSumFallOff || sums == law::kSumDecay;
       }));
  need(Shader::kChain, is_chained);
  need(Shader::kSearch, is_chained);
  need(Shader::kSample, true);
  need(Shader::kVerify, has(kFlagVerify));
  need(Shader::kDescribe, has(kFlagRaw | kFlagProcessed));
  need(Shader::kPlace, input.requested_count != 0 && has(kFlagRaw | kFlagProcessed));
  need(Shader::kList, has(kFlagEntropy | kFlagKeptTokens));
}

void Chunk::WriteInputs(RowInput* inputs) const { std::copy(inputs_.begin(), inputs_.end(), inputs); }

void Chunk::WriteExtras(uint32_t* extras) {
  WriteTables(extras);
  for (uint32_t row = 0; row < rows(); ++row) {
    RowInput& input = inputs_[row];
    const RowRequest& request = *requests_[row];
    std::ranges::copy(request.requested, extras + input.requested);
    if ((input.flags & kFlagVerify) != 0 && input.draft_form == kDraftSparse) {
      std::ranges::copy(request.draft.sparse_tokens, extras + input.draft);
      std::ranges::copy(request.draft.sparse_bits, extras + input.draft + input.draft_count);
    }
    WriteStages(request.parameters->chain, extras + input.stages);
    if ((input.flags & kFlagVisible) == 0) continue;
    input.edit_count = WriteRowExtras(request, extras + input.visible, extras + input.edits);
  }
}

std::span<const std::byte> Chunk::DenseDraftOf(uint32_t row) const {
  const RowInput& input = inputs_[row];
  if ((input.flags & kFlagVerify) == 0 || input.draft_form != kDraftDense) return {};
  const RowRequest& request = *requests_[row];
  return {static_cast<const std::byte*>(request.draft.dense),
          size_t{request.live_vocabulary} * ElementBytes(request.draft.dtype)};
}

}  // namespace sortition::kernels::vulkan
