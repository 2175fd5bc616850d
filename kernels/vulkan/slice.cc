// Layout of rows, and answers from what kernels leave.
#include "kernels/vulkan/slice.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "kernels/check.h"
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

RowInput InputOf(const RowRequest& request) {
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
  input.patch_count = uint32_t(request.patches.size());
  input.processed_top = parameters.greedy ? 0 : std::min(parameters.processed_top, request.live_vocabulary);
  input.raw_top = std::min(parameters.raw_top, request.live_vocabulary);
  input.requested_count = uint32_t(request.requested.size());
  input.given = request.given;
  input.draft_form = FormOf(request.draft.form);
  input.draft_dtype = ElementOf(request.draft.dtype);
  input.draft_count = uint32_t(request.draft.sparse_tokens.size());
  return input;
}

// Bytes of a tensor of the row's size, in whole quads.
uint64_t TensorBytes(const RowRequest& request, DType dtype) {
  return (uint64_t{request.live_vocabulary} * ElementBytes(dtype) + kQuadBytes - 1) / kQuadBytes * kQuadBytes;
}

RowError DraftErrorOf(uint32_t error) {
  switch (error) {
    case kDraftNoProbability:
      return RowError::kDraftNoProbability;
    case kDraftSum:
      return RowError::kDraftSum;
    case kDraftImpossible:
      return RowError::kDraftImpossible;
    default:
      SORTITION_CHECK(false);
  }
}

RowAnswer Failed(RowError error, uint32_t token) {
  RowAnswer answer;
  answer.error = error;
  answer.error_token = token;
  return answer;
}

// In the law's order: the kernels write them in none.
std::vector<TokenBits> TopOf(const uint32_t* pairs, uint32_t count) {
  std::vector<uint64_t> ranks(count);  // key : ~token
  for (uint32_t i = 0; i < count; ++i) ranks[i] = uint64_t{pairs[2 * i]} << 32 | uint32_t(~pairs[2 * i + 1]);
  std::sort(ranks.begin(), ranks.end(), std::greater<>());
  std::vector<TokenBits> top;
  top.reserve(count);
  for (const uint64_t rank : ranks) top.push_back({~uint32_t(rank), law::KeyBits(uint32_t(rank >> 32))});
  return top;
}

std::vector<Place> PlacesOf(const uint32_t* pairs, uint32_t count) {
  std::vector<Place> places(count);
  for (uint32_t i = 0; i < count; ++i) places[i] = {law::KeyBits(pairs[2 * i]), pairs[2 * i + 1]};
  return places;
}

// Ids ascending.
std::vector<TokenBits> KeptOf(const uint32_t* pairs, uint32_t count) {
  std::vector<TokenBits> kept(count);
  for (uint32_t i = 0; i < count; ++i) kept[i] = {pairs[2 * i + 1], law::KeyBits(pairs[2 * i])};
  std::ranges::sort(kept, {}, &TokenBits::token);
  return kept;
}

Distribution DistributionOf(const DistributionOutput& output, uint32_t token, const uint32_t* tops,
                            std::vector<Place> requested) {
  Distribution distribution;
  distribution.max_bits = law::KeyBits(output.max_key);
  distribution.weight_sum = uint64_t{output.sum_high} << 32 | output.sum_low;
  distribution.chosen = {token, law::KeyBits(output.chosen_key)};
  distribution.rank = output.rank;
  distribution.top = TopOf(tops, output.top_count);
  distribution.requested = std::move(requested);
  return distribution;
}

// A greedy row's distribution is all on its first token.
Distribution PointMass(TokenBits first, uint32_t token, uint32_t top, std::span<const uint32_t> requested) {
  const auto place_of = [&](uint32_t id) {
    return id == first.token ? Place{first.bits, 1} : Place{law::kMaskedBits, 0};
  };
  Distribution distribution;
  distribution.max_bits = first.bits;
  distribution.weight_sum = law::kUnitWeight;
  distribution.chosen = {token, place_of(token).bits};
  distribution.rank = place_of(token).rank;
  if (top != 0) distribution.top.push_back(first);
  for (const uint32_t id : requested) distribution.requested.push_back(place_of(id));
  return distribution;
}

void DescribeGreedy(const RowRequest& request, const RowOutput& output, RowAnswer* answer) {
  const RowParameters& parameters = *request.parameters;
  const TokenBits first = {output.first_token, law::KeyBits(output.max_key)};
  if (answer->kept != 0) answer->kept = 1;
  if (parameters.processed_logprob) {
    answer->processed = PointMass(first, answer->token, parameters.processed_top, request.requested);
  }
  if (parameters.entropy) answer->entropy = {law::kUnitWeight, 0};
  if (parameters.kept_tokens) answer->kept_tokens = {first};
}

void DescribeProcessed(const RowInput& input, const RowParameters& parameters, const RowOutput& output,
                       const uint32_t* tops, RowAnswer* answer) {
  if (parameters.processed_logprob) {
    answer->processed = DistributionOf(output.processed, output.token, tops + 2 * size_t{input.processed_tops},
                                       PlacesOf(tops + 2 * size_t{input.processed_places}, input.requested_count));
  }
  if (parameters.entropy) {
    answer->entropy = {uint64_t{output.entropy_weights_high} << 32 | output.entropy_weights_low,
                       uint64_t{output.entropy_surplus_high} << 32 | output.entropy_surplus_low};
  }
  if (parameters.kept_tokens) answer->kept_tokens = KeptOf(tops + 2 * size_t{input.kept_tokens}, output.kept);
}

}  // namespace

uint64_t Slice::Sizes::Largest() const { return std::max({logits, inputs, extras, scratch, outputs, tops}); }

bool Slice::Add(const RowRequest& request, uint64_t most_bytes) {
  CheckRow(request);
  RowInput input = InputOf(request);
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
  input.patches = uint32_t(sizes.extras / 4);
  sizes.extras += uint64_t{4} * kPatchWords * input.patch_count;
  input.scratch = uint32_t(sizes.scratch / 4);
  sizes.scratch += uint64_t{4} * KERNEL_SCRATCH_WORDS(groups, input.patch_count);
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
    sizes.tops += uint64_t{8} * (input.top_k != 0 ? input.top_k : request.live_vocabulary);
  }
  sizes.inputs += sizeof(RowInput);
  sizes.outputs += sizeof(RowOutput);
  if (sizes.Largest() > most_bytes) return false;

  sizes_ = sizes;
  max_vocabulary_ = std::max(max_vocabulary_, request.live_vocabulary);
  chunks_ = std::max(chunks_, (groups + kChunkGroups - 1) / kChunkGroups);
  patches_ = std::max(patches_, input.patch_count);
  const bool processed = (input.flags & kFlagProcessed) != 0;
  const bool raw = (input.flags & kFlagRaw) != 0;
  const bool whole_top_p = !request.parameters->greedy && input.top_k == 0 && input.top_p != 0;
  const bool verifies = (input.flags & kFlagVerify) != 0;
  const bool whole_sum = (processed || verifies) && input.top_k == 0;
  weighs_ = weighs_ || raw || whole_top_p || whole_sum;
  verifies_ = verifies_ || verifies;
  describes_ = describes_ || raw || processed;
  places_ = places_ || (input.requested_count != 0 && (raw || processed));
  lists_ = lists_ || (input.flags & (kFlagEntropy | kFlagKeptTokens)) != 0;
  requests_.push_back(&request);
  inputs_.push_back(input);
  return true;
}

void Slice::WriteInputs(RowInput* inputs) const { std::copy(inputs_.begin(), inputs_.end(), inputs); }

void Slice::WriteExtras(uint32_t* extras) {
  for (uint32_t row = 0; row < rows(); ++row) {
    RowInput& input = inputs_[row];
    const RowRequest& request = *requests_[row];
    std::ranges::copy(request.requested, extras + input.requested);
    if ((input.flags & kFlagVerify) != 0 && input.draft_form == kDraftSparse) {
      std::ranges::copy(request.draft.sparse_tokens, extras + input.draft);
      std::ranges::copy(request.draft.sparse_bits, extras + input.draft + input.draft_count);
    }
    if ((input.flags & kFlagVisible) == 0) continue;
    input.patch_count = WriteRowExtras(request, extras + input.visible, extras + input.patches);
  }
}

std::span<const std::byte> Slice::DenseDraftOf(uint32_t row) const {
  const RowInput& input = inputs_[row];
  if ((input.flags & kFlagVerify) == 0 || input.draft_form != kDraftDense) return {};
  const RowRequest& request = *requests_[row];
  return {static_cast<const std::byte*>(request.draft.dense),
          size_t{request.live_vocabulary} * ElementBytes(request.draft.dtype)};
}

RowAnswer Slice::AnswerOf(uint32_t row, const RowOutput* outputs, const uint32_t* tops) const {
  const RowRequest& request = *requests_[row];
  const RowParameters& parameters = *request.parameters;
  const RowInput& input = inputs_[row];
  const RowOutput& output = outputs[row];
  if (output.sent_error != kNone) {
    return Failed((output.sent_error & 1) == 0 ? RowError::kNaN : RowError::kLogitTooLarge, output.sent_error / 2);
  }
  if (output.changed_error != kNone) return Failed(RowError::kLogitTooLarge, output.changed_error);
  if (output.max_key == kNone) return Failed(RowError::kNoLiveToken, 0);
  if ((input.flags & kFlagVerify) != 0 && output.draft_error != kNone) {
    return Failed(DraftErrorOf(output.draft_error), output.draft_error_token);
  }
  RowAnswer answer;
  answer.token = output.token;
  answer.accepted = output.accepted == 1;
  if (parameters.processed_logprob || parameters.kept_count || parameters.kept_tokens) answer.kept = output.kept;
  if (parameters.greedy) {
    DescribeGreedy(request, output, &answer);
  } else {
    DescribeProcessed(input, parameters, output, tops, &answer);
  }
  if (parameters.raw_logprob) {
    answer.raw = DistributionOf(output.raw, output.token, tops + 2 * size_t{input.raw_tops},
                                PlacesOf(tops + 2 * size_t{input.raw_places}, input.requested_count));
  }
  return answer;
}

}  // namespace sortition::kernels::vulkan
