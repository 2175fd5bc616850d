// Orders, and compilation of each sampler.
#include "kernels/law/chain.h"

#include <algorithm>
#include <array>
#include <bit>

#include "kernels/check.h"
#include "kernels/law/options.h"
#include "kernels/law/row_law.h"
#include "kernels/law/units.h"

namespace sortition::law {
namespace {

using kernels::Stage;
using kernels::StageKind;

// Returns the samplers by their places in a preset, which are distinct.
constexpr std::array<Sampler, kSamplers> OrderOf(const std::array<uint32_t, kSamplers>& places) {
  std::array<Sampler, kSamplers> order{};
  for (uint32_t i = 0; i < kSamplers; ++i) order[i] = static_cast<Sampler>(i);
  std::ranges::sort(order, {}, [&](Sampler sampler) { return places[uint32_t(sampler)]; });
  for (uint32_t i = 1; i < kSamplers; ++i) {
    SORTITION_CHECK(places[uint32_t(order[i - 1])] < places[uint32_t(order[i])]);
  }
  return order;
}
#define SAMPLER(sampler, name, first, last, greedy, operand, vllm, llama_cpp, hf) vllm,
constexpr auto kVllmOrder = OrderOf({
#include "kernels/law/options.inc"
});
#define SAMPLER(sampler, name, first, last, greedy, operand, vllm, llama_cpp, hf) llama_cpp,
constexpr auto kLlamaCppOrder = OrderOf({
#include "kernels/law/options.inc"
});
#define SAMPLER(sampler, name, first, last, greedy, operand, vllm, llama_cpp, hf) hf,
constexpr auto kHfOrder = OrderOf({
#include "kernels/law/options.inc"
});
// Mirostat and adaptive-p exclude each other.
static_assert(kSamplers - 1 <= kernels::kMaxStages);
static_assert(NumberNamed("min_keep").most.value == kMostKeptAtLeast);

// A temperature of 1 is off, so a range of dynamic temperature without `temperature` lies about 1.
bool IsDynamic(const SamplingParameters& p) { return p.dynamic_temperature_range != 0; }

uint32_t Probability32(float p) { return uint32_t(std::min<uint64_t>(RoundedUnits(p, 32), 0xffffffff)); }

Stage TemperatureStage(const SamplingParameters& p) {
  if (!IsDynamic(p)) {
    const Temperature t = TemperatureConstants(p.temperature);
    return {StageKind::kTemperature,
            {t.multiplier, uint32_t(t.exponent), t.window, std::bit_cast<uint32_t>(p.temperature)}};
  }
  const double range = p.dynamic_temperature_range;
  const auto least = uint32_t(RoundedUnits(std::max(0.0, p.temperature - range), 24));
  const auto most = uint32_t(RoundedUnits(p.temperature + range, 24));
  return {StageKind::kDynamicTemperature,
          {least, most - least, uint32_t(RoundedUnits(p.dynamic_temperature_exponent, 28))}};
}

Stage SmoothingStage(const SamplingParameters& p) {
  const double factor = p.smoothing_factor;
  return {StageKind::kQuadraticSmoothing,
          {CanonicalBits(float(factor * (3 - double(p.smoothing_curve)) / 2)),
           CanonicalBits(float(factor * (double(p.smoothing_curve) - 1) / 2))}};
}

Stage MirostatStage(const SamplingParameters& p) {
  const auto tau = uint32_t(RoundedUnits(p.mirostat_tau, 26));
  const auto eta = uint32_t(RoundedUnits(p.mirostat_eta, 30));
  if (p.mirostat == 1) return {StageKind::kMirostat1, {tau, eta, p.mirostat_m}};
  return {StageKind::kMirostat2, {tau, eta}};
}

// The stage without LeastCount.
Stage PlainStageOf(const SamplingParameters& p, Sampler sampler) {
#define STAGE(sampler, ...) \
  case Sampler::k##sampler: \
    return {StageKind::k##sampler, {__VA_ARGS__}};
#define STAGE_Threshold(sampler, name) STAGE(sampler, MinPDistance(p.name))
#define STAGE_Mass(sampler, name) STAGE(sampler, TopPUnits(p.name))
#define STAGE_Number(sampler, name) STAGE(sampler, p.name)
#define STAGE_Flag(sampler, name) STAGE(sampler)
#define STAGE_Own(sampler, name)
#define SAMPLER(sampler, name, first, last, greedy, operand, vllm, llama_cpp, hf) STAGE_##operand(sampler, name)
  switch (sampler) {
#include "kernels/law/options.inc"
#undef STAGE
#undef STAGE_Threshold
#undef STAGE_Mass
#undef STAGE_Number
#undef STAGE_Flag
#undef STAGE_Own
    case Sampler::kTemperature:
      return TemperatureStage(p);
    case Sampler::kQuadraticSmoothing:
      return SmoothingStage(p);
    case Sampler::kTopNSigma:
      return {StageKind::kTopNSigma, {(7u << 26) - MinPDistance(p.top_n_sigma / 128)}};
    case Sampler::kTopH:
      return {StageKind::kTopH, {uint32_t(RoundedUnits(p.top_h, 31))}};
    case Sampler::kXtc:
      return {StageKind::kXtc, {TopPUnits(p.xtc_probability) - 1, MinPDistance(p.xtc_threshold)}};
    case Sampler::kMirostat:
      return MirostatStage(p);
    case Sampler::kAdaptiveP:
      return {StageKind::kAdaptiveP, {Probability32(p.adaptive_target), Probability32(p.adaptive_decay)}};
    case Sampler::kMinK:
      return {StageKind::kMinK, {uint32_t(RoundedUnits(p.min_k_tau, 24))}};
  }
  __builtin_unreachable();
}

// The fourth operand, which filters leave free, is the count. Top-k keeps it in its own operand.
Stage StageOf(const SamplingParameters& p, Sampler sampler) {
  Stage stage = PlainStageOf(p, sampler);
  if (sampler == Sampler::kTopK) stage.operands[0] = std::max(p.top_k, p.min_keep);
  if (p.min_keep <= 1 || CutOf(uint32_t(stage.kind)) == kCutFirst) return stage;
  Stage with = stage;
  with.operands[3] = p.min_keep;
  return LeastCount(ToStageWords(with)) == p.min_keep ? with : stage;
}

// True if a threshold on probabilities can drop anything.
bool IsThreshold(float q) { return MinPDistance(q) != kernels::RowParameters::kMinPOff; }

}  // namespace

std::string_view SamplerName(Sampler sampler) {
  static constexpr std::string_view kNames[] = {
#define SAMPLER(sampler, name, first, last, greedy, operand, vllm, llama_cpp, hf) #name,
#include "kernels/law/options.inc"
  };
  return kNames[size_t(sampler)];
}

std::span<const Sampler> PresetOrder(Preset preset) {
  switch (preset) {
    case Preset::kVllm:
      return kVllmOrder;
    case Preset::kLlamaCpp:
      return kLlamaCppOrder;
    case Preset::kHf:
      return kHfOrder;
  }
  __builtin_unreachable();
}

bool IsOn(const SamplingParameters& p, Sampler sampler) {
#define ON(sampler, is_on)  \
  case Sampler::k##sampler: \
    return is_on;
#define ON_Threshold(sampler, name) ON(sampler, IsThreshold(p.name))
#define ON_Mass(sampler, name) ON(sampler, TopPUnits(p.name) != 0)
#define ON_Number(sampler, name) ON(sampler, p.name != 0)
#define ON_Flag(sampler, name) ON(sampler, p.name)
#define ON_Own(sampler, name)
#define SAMPLER(sampler, name, first, last, greedy, operand, vllm, llama_cpp, hf) ON_##operand(sampler, name)
  switch (sampler) {
#include "kernels/law/options.inc"
#undef ON
#undef ON_Threshold
#undef ON_Mass
#undef ON_Number
#undef ON_Flag
#undef ON_Own
    case Sampler::kTemperature:
      return p.temperature != 1 || IsDynamic(p);
    case Sampler::kQuadraticSmoothing:
      return p.smoothing_factor != 0;
    case Sampler::kTopNSigma:
      return p.top_n_sigma != 0;
    case Sampler::kTopH:
      return p.top_h != 0;
    case Sampler::kXtc:
      return p.xtc_probability != 0 && p.xtc_threshold <= kMaxXtcThreshold;
    case Sampler::kMirostat:
      return p.mirostat != 0;
    case Sampler::kAdaptiveP:
      return p.adaptive_p;
    case Sampler::kMinK:
      return p.min_k;
  }
  __builtin_unreachable();
}

std::vector<Stage> CompileChain(const SamplingParameters& parameters) {
  SORTITION_CHECK(!FindOutOfRange(parameters) && (parameters.mirostat == 0 || !parameters.adaptive_p));
  const std::span<const Sampler> order =
      parameters.order.empty() ? PresetOrder(Preset::kVllm) : std::span<const Sampler>(parameters.order);
  std::vector<Stage> chain;
  uint32_t listed = 0;
  for (const Sampler sampler : order) {
    SORTITION_CHECK((listed >> uint32_t(sampler) & 1) == 0);
    listed |= 1u << uint32_t(sampler);
    if (!IsOn(parameters, sampler)) continue;
    SORTITION_CHECK(!kernels::KeepsSamplerState(chain));
    chain.push_back(StageOf(parameters, sampler));
  }
  for (uint32_t i = 0; i < kSamplers; ++i) {
    SORTITION_CHECK((listed >> i & 1) != 0 || !IsOn(parameters, static_cast<Sampler>(i)));
  }
  return chain;
}

namespace {

// The temperature that divides the logits which a chain's answers show.
ShownTemperature ShownBy(std::span<const Stage> chain, const kernels::RowOutput& answer) {
  ShownTemperature shown = ShownAtFirst();
  for (const Stage& stage : chain) shown = ShownAfter(ToStageWords(stage), shown, answer.temperature);
  return shown;
}

double NumberOf(const ShownTemperature& shown) {
  return shown.units != 0 ? shown.units * 0x1p-24 : std::bit_cast<float>(shown.bits);
}

// The temperature that a chain sets. Stages that reshape logits have no effect on it.
ShownTemperature SetBy(std::span<const Stage> chain, uint32_t dynamic) {
  ShownTemperature set = ShownAtFirst();
  for (const Stage& stage : chain) {
    const bool sets = stage.kind == StageKind::kTemperature || stage.kind == StageKind::kDynamicTemperature;
    if (sets) set = ShownAfter(ToStageWords(stage), set, dynamic);
  }
  return set;
}

}  // namespace

double ProcessedTemperature(const kernels::RowParameters& parameters, const kernels::RowOutput& answer) {
  return parameters.chain.empty() ? parameters.temperature : NumberOf(ShownBy(parameters.chain, answer));
}

Temperature TemperedConstants(const kernels::RowParameters& parameters, uint32_t dynamic) {
  if (!parameters.chain.empty()) return SetBy(parameters.chain, dynamic).constants;
  return {parameters.multiplier, parameters.exponent, parameters.window};
}

double TemperedTemperature(const kernels::RowParameters& parameters, const kernels::RowOutput& answer) {
  return parameters.chain.empty() ? parameters.temperature : NumberOf(SetBy(parameters.chain, answer.temperature));
}

Scale ProcessedScale(const kernels::RowParameters& parameters, const kernels::RowOutput& answer) {
  if (parameters.chain.empty()) return ScaleAt(parameters, answer.processed.max_bits);
  return ScaleOf(answer.processed.max_bits, ShownBy(parameters.chain, answer).constants);
}

void ShowProcessed(const Shape& shape, kernels::RowOutput* answer) {
  const auto show = [&](uint32_t* bits) {
    if (*bits != kMaskedBits) *bits = ProcessedBits(*bits, shape);
  };
  kernels::Distribution& processed = answer->processed;
  if (processed.weight_sum != 0) {
    show(&processed.max_bits);
    show(&processed.chosen.bits);
    if (shape.is_adapted) processed.max_bits = 0;  // the largest logit that adaptive-p gives
  }
  for (kernels::TokenBits& token : processed.top) show(&token.bits);
  for (kernels::TokenPlace& place : processed.requested) show(&place.bits);
  for (kernels::TokenBits& token : answer->kept_tokens) show(&token.bits);
}

uint32_t ProcessedBits(uint32_t bits, const Shape& shape) {
  if (!shape.is_adapted) return ShapedBits(bits, shape);
  const uint32_t t = ShapedDistance(bits, shape);
  // Octaves to nats; dead tokens are infinitely far.
  constexpr double kLn2PerUnit = 0x1.62e42fefa39efp-27;  // the double nearest to ln 2, times 2^-26
  return t == kDead ? kMaskedBits : CanonicalBits(float(-(double(t) * kLn2PerUnit)));
}

}  // namespace sortition::law
