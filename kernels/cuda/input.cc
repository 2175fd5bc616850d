// Options to flags, and answers back.
#include "kernels/cuda/input.h"

#include <algorithm>
#include <bit>

#include "kernels/check.h"
#include "kernels/law/law.h"

namespace sortition::kernels::cuda {
namespace {

// Blocks that a multiprocessor runs at once, and how many such waves a launch is cut into: the last blocks of early
// rows then work while later rows are read.
constexpr uint32_t kBlocksAtOnce = 4;
constexpr uint32_t kWaves = 2;

Distribution ToDistribution(const DistributionOutput& output, uint32_t token, const TopToken* top) {
  Distribution distribution;
  distribution.max_bits = output.max_bits;
  distribution.weight_sum = output.weight_sum;
  distribution.chosen = {token, output.chosen_bits};
  distribution.rank = output.rank;
  distribution.top.reserve(output.top_count);
  for (uint32_t i = 0; i < output.top_count; ++i) distribution.top.push_back({top[i].token, top[i].bits});
  return distribution;
}

}  // namespace

RowInput MakeRowInput(const RowParameters& parameters, const NoiseKey& noise, DType dtype, uint32_t vocabulary,
                      bool is_chained) {
  SORTITION_CHECK(vocabulary >= 1 && vocabulary <= kMaxVocabulary);
  RowInput input;
  input.temperature = parameters.temperature;
  input.dtype = dtype;
  input.vocabulary = vocabulary;
  input.multiplier = parameters.multiplier;
  input.exponent = parameters.exponent;
  input.window = parameters.window;
  input.min_p_distance = parameters.min_p_distance;
  input.top_k = parameters.top_k < vocabulary ? parameters.top_k : 0;
  input.top_p = parameters.top_p;
  input.repetition = parameters.repetition;
  input.inverse_repetition = parameters.inverse_repetition;
  input.seed_low = uint32_t(noise.seed);
  input.seed_high = uint32_t(noise.seed >> 32);
  input.position = noise.position;
  input.stream = noise.stream;
  input.raw_top_count = std::min(parameters.raw_top, vocabulary);
  input.processed_top_count = std::min(parameters.processed_top, vocabulary);
  if (parameters.mask_nan) input.flags |= kFlagMaskNan;
  if (parameters.greedy) input.flags |= kFlagGreedy;
  if (parameters.raw_logprob) input.flags |= kFlagRaw;
  if (parameters.processed_logprob || parameters.kept_count) input.flags |= kFlagProcessed;
  if (is_chained) {
    input.flags |= kFlagChained;
  } else if (!parameters.greedy && (input.top_k == 0 || input.top_k > kMostListed)) {
    input.flags |= kFlagOpenRace;
  }
  return input;
}

LaterKernels NeededBy(const RowInput& input) {
  const bool is_raw = (input.flags & kFlagRaw) != 0;
  if ((input.flags & kFlagChained) != 0) return {.weigh = is_raw, .chain = true};
  const bool is_processed = (input.flags & kFlagProcessed) != 0;
  const bool is_open = (input.flags & kFlagGreedy) == 0 && input.top_k == 0;
  return {.weigh = is_raw || (is_open && (input.top_p != 0 || is_processed)), .chain = false};
}

bool IsChained(const RowParameters& parameters, RowTask task, bool requests) {
  return !parameters.chain.empty() || parameters.entropy || parameters.kept_tokens || task != RowTask::kDraw ||
         requests;
}

ChainedInput MakeChainedInput(const RowParameters& parameters) {
  ChainedInput input;
  input.sums_entropy = parameters.entropy;
  if (parameters.greedy) return input;
  const auto add = [&](const Stage& stage) { input.stages[input.stage_count++] = stage; };
  for (const Stage& stage : parameters.chain) add(stage);
  if (!parameters.chain.empty()) return input;
  const auto temperature = std::bit_cast<uint32_t>(float(parameters.temperature));
  add({StageKind::kTemperature,
       {parameters.multiplier, uint32_t(parameters.exponent), parameters.window, temperature}});
  if (parameters.min_p_distance != RowParameters::kMinPOff) add({StageKind::kMinP, {parameters.min_p_distance}});
  if (parameters.top_k != 0) add({StageKind::kTopK, {parameters.top_k}});
  if (parameters.top_p != 0) add({StageKind::kTopP, {parameters.top_p}});
  return input;
}

Geometry ChooseGeometry(uint32_t rows, uint32_t largest_groups, uint32_t multiprocessors) {
  SORTITION_CHECK(rows >= 1 && largest_groups >= 1 && multiprocessors >= 1);
  const uint32_t tiles = (largest_groups + kTileGroups - 1) / kTileGroups;
  const uint32_t wanted = std::max(1u, kWaves * kBlocksAtOnce * multiprocessors / rows);  // blocks of a row
  const uint32_t section_tiles = std::clamp((tiles + wanted - 1) / wanted, 1u, kMaxSectionGroups / kTileGroups);
  return {section_tiles * kTileGroups, (tiles + section_tiles - 1) / section_tiles};
}

RowOutput ReadOutput(const RowParameters& parameters, const OutputView& view) {
  const RawOutput& output = *view.output;
  RowOutput answer;
  answer.error = output.error;
  if (answer.error != RowFault::kNone) {
    answer.error_token = output.error_token;
    return answer;
  }
  answer.token = output.token;
  if (parameters.processed_logprob || parameters.kept_count || parameters.kept_tokens) answer.kept = output.kept;
  if (parameters.processed_logprob) {
    answer.processed = ToDistribution(output.processed, output.token, view.processed_top);
    answer.processed.requested.assign(view.processed_places, view.processed_places + view.requested);
  }
  if (parameters.raw_logprob) {
    answer.raw = ToDistribution(output.raw, output.token, view.raw_top);
    answer.raw.requested.assign(view.raw_places, view.raw_places + view.requested);
  }
  if (view.chained == nullptr) return answer;
  answer.accepted = view.chained->accepted != 0;
  answer.sampler_state = view.chained->sampler_state;
  answer.temperature = view.chained->temperature;
  if (parameters.entropy) answer.entropy = view.chained->entropy;
  if (parameters.kept_tokens) {
    answer.kept_tokens.assign(view.kept, view.kept + output.kept);
    std::ranges::sort(answer.kept_tokens, {}, &TokenBits::token);
  }
  return answer;
}

}  // namespace sortition::kernels::cuda
