// Turns the kernels' integers into answers.
#include "kernels/vulkan/output.h"

#include <algorithm>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/check.h"
#include "kernels/law/chain.h"
#include "kernels/law/row_law.h"

namespace sortition::kernels::vulkan {
namespace {

RowFault ToDraftFault(uint32_t error) {
  switch (error) {
    case kDraftNoProbability:
      return RowFault::kDraftNoProbability;
    case kDraftSum:
      return RowFault::kDraftSum;
    case kDraftImpossible:
      return RowFault::kDraftImpossible;
    default:
      SORTITION_CHECK(false);
  }
}

RowOutput Failed(RowFault error, uint32_t token) {
  RowOutput answer;
  answer.error = error;
  answer.error_token = token;
  return answer;
}

// Returns the tokens in the law's order; the kernels write them in no order.
std::vector<TokenBits> ToTop(const uint32_t* pairs, uint32_t count) {
  std::vector<uint64_t> ranks(count);  // key : ~token
  for (uint32_t i = 0; i < count; ++i) ranks[i] = uint64_t{pairs[2 * i]} << 32 | uint32_t(~pairs[2 * i + 1]);
  std::sort(ranks.begin(), ranks.end(), std::greater<>());
  std::vector<TokenBits> top;
  top.reserve(count);
  for (const uint64_t rank : ranks) top.push_back({~uint32_t(rank), law::KeyBits(uint32_t(rank >> 32))});
  return top;
}

std::vector<TokenPlace> ToPlaces(const uint32_t* pairs, uint32_t count) {
  std::vector<TokenPlace> places(count);
  for (uint32_t i = 0; i < count; ++i) places[i] = {law::KeyBits(pairs[2 * i]), pairs[2 * i + 1]};
  return places;
}

// Returns the kept tokens by ascending id.
std::vector<TokenBits> ToKept(const uint32_t* pairs, uint32_t count) {
  std::vector<TokenBits> kept(count);
  for (uint32_t i = 0; i < count; ++i) kept[i] = {pairs[2 * i + 1], law::KeyBits(pairs[2 * i])};
  std::ranges::sort(kept, {}, &TokenBits::token);
  return kept;
}

Distribution ToDistribution(const DistributionOutput& output, uint32_t token, const uint32_t* tops,
                            std::vector<TokenPlace> requested) {
  Distribution distribution;
  distribution.max_bits = law::KeyBits(output.max_key);
  distribution.weight_sum = uint64_t{output.sum_high} << 32 | output.sum_low;
  distribution.chosen = {token, law::KeyBits(output.chosen_key)};
  distribution.rank = output.rank;
  distribution.top = ToTop(tops, output.top_count);
  distribution.requested = std::move(requested);
  return distribution;
}

// A greedy row's distribution is all on its first token.
Distribution PointMass(TokenBits first, uint32_t token, uint32_t top, std::span<const uint32_t> requested) {
  const auto place_of = [&](uint32_t id) {
    return id == first.token ? TokenPlace{first.bits, 1} : TokenPlace{law::kMaskedBits, 0};
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

void DescribeGreedy(const RowRequest& request, const RawOutput& output, RowOutput* answer) {
  const RowParameters& parameters = *request.parameters;
  const TokenBits first = {output.first_token, law::KeyBits(output.max_key)};
  if (answer->kept != 0) answer->kept = 1;
  if (parameters.processed_logprob) {
    answer->processed = PointMass(first, answer->token, parameters.processed_top, request.requested);
  }
  if (parameters.entropy) answer->entropy = {law::kUnitWeight, 0};
  if (parameters.kept_tokens) answer->kept_tokens = {first};
}

void DescribeProcessed(const RowInput& input, const RowParameters& parameters, const RawOutput& output,
                       const uint32_t* tops, RowOutput* answer) {
  if (parameters.processed_logprob) {
    answer->processed = ToDistribution(output.processed, output.token, tops + 2 * size_t{input.processed_tops},
                                       ToPlaces(tops + 2 * size_t{input.processed_places}, input.requested_count));
  }
  if (parameters.entropy) {
    answer->entropy = {uint64_t{output.entropy_weights_high} << 32 | output.entropy_weights_low,
                       uint64_t{output.entropy_surplus_high} << 32 | output.entropy_surplus_low};
  }
  if (parameters.kept_tokens) answer->kept_tokens = ToKept(tops + 2 * size_t{input.kept_tokens}, output.kept);
}

law::Shape ToShape(const ChainOutput& chain) {
  law::Shape shape = {};
  shape.temperature = {chain.multiplier, chain.exponent, chain.window};
  shape.dynamic = chain.temperature;
  shape.is_curved = chain.is_curved != 0;
  shape.curve = {chain.curve_max, chain.curve_inverse, chain.curve_square, chain.curve_cube};
  shape.is_adapted = chain.is_adapted != 0;
  shape.share = {chain.share_up, chain.share_reciprocal};
  shape.target = chain.target;
  shape.scale = law::ScaleFrom(law::KeyBits(chain.first_key), shape);
  return shape;
}

// Returns the sampler's state after the answer's token, or the state before it if the token is not kept.
uint64_t NextState(const RowRequest& request, const RawOutput& output, const law::Shape& shape) {
  const std::vector<Stage>& chain = request.parameters->chain;
  if (!KeepsSamplerState(chain)) return 0;
  const uint32_t key = output.token_key;
  const bool is_kept = key != 0 && !law::Before(key, output.token, output.chain.first_key, output.chain.first_token) &&
                       !law::Before(output.last_key, output.last_token, key, output.token);
  if (!is_kept) return request.sampler_state;
  const uint32_t t = law::Distance(law::ShapedBits(law::KeyBits(key), shape), shape.scale);
  const uint64_t sum = uint64_t{output.chain.sum_high} << 32 | output.chain.sum_low;
  return law::StateAfter(law::ToStageWords(chain.back()), shape, t, sum, request.sampler_state);
}

void FinishChain(const RowRequest& request, const RawOutput& output, RowOutput* answer) {
  const law::Shape shape = ToShape(output.chain);
  answer->temperature = shape.dynamic;
  answer->sampler_state = NextState(request, output, shape);
  law::ShowProcessed(shape, answer);
}

}  // namespace

RowOutput ReadOutput(const RowRequest& request, const RowInput& input, const RawOutput& output, const uint32_t* tops) {
  const RowParameters& parameters = *request.parameters;
  if (output.sent_error != kNone) {
    return Failed((output.sent_error & 1) == 0 ? RowFault::kNaN : RowFault::kLogitTooLarge, output.sent_error / 2);
  }
  if (output.changed_error != kNone) return Failed(RowFault::kLogitTooLarge, output.changed_error);
  if (output.max_key == kNone) return Failed(RowFault::kNoLiveToken, 0);
  if ((input.flags & kFlagVerify) != 0 && output.draft_error != kNone) {
    return Failed(ToDraftFault(output.draft_error), output.draft_error_token);
  }
  RowOutput answer;
  answer.token = output.token;
  answer.accepted = output.accepted == 1;
  if (parameters.processed_logprob || parameters.kept_count || parameters.kept_tokens) answer.kept = output.kept;
  if (parameters.greedy) {
    DescribeGreedy(request, output, &answer);
  } else {
    DescribeProcessed(input, parameters, output, tops, &answer);
  }
  if (parameters.raw_logprob) {
    answer.raw = ToDistribution(output.raw, output.token, tops + 2 * size_t{input.raw_tops},
                                ToPlaces(tops + 2 * size_t{input.raw_places}, input.requested_count));
  }
  if ((input.flags & kFlagChain) != 0) FinishChain(request, output, &answer);
  return answer;
}

}  // namespace sortition::kernels::vulkan
