// Writes rows with chains and the answers of the law's reference, one JSON object a line.
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "kernels/law/chain.h"
#include "kernels/law/logprob.h"
#include "kernels/law/reference.h"

namespace sortition::law {
namespace {

constexpr uint32_t kVocabulary = 1200;
constexpr uint32_t kRows = 24;  // of each case

SamplingParameters InOrder(Preset preset, SamplingParameters options) {
  const auto order = PresetOrder(preset);
  options.order.assign(order.begin(), order.end());
  return options;
}

std::vector<SamplingParameters> Cases() {
  const SamplingParameters usual = {.temperature = 0.7f, .top_k = 60, .top_p = 0.9f, .min_p = 0.02f, .typical_p = 0.8f};
  SamplingParameters many = usual;
  many.top_n_sigma = 2;
  many.epsilon_cutoff = 1e-3f;
  many.eta_cutoff = 1e-3f;
  many.top_a = 0.05f;
  many.xtc_probability = 1;
  many.xtc_threshold = 0.05f;
  many.dynamic_temperature_range = 0.4f;
  many.smoothing_factor = 0.2f;
  many.smoothing_curve = 1.3f;
  SamplingParameters least = many;
  least.top_h = 0.2f;
  least.p_less = least.min_k = true;
  least.min_keep = 9;
  std::vector<SamplingParameters> cases = {
      usual,
      InOrder(Preset::kLlamaCpp, usual),
      InOrder(Preset::kHf, usual),
      many,
      InOrder(Preset::kLlamaCpp, many),
      InOrder(Preset::kHf, many),
      {.temperature = 1.3f, .typical_p = 0.5f},
      {.top_n_sigma = 1.5f},
      {.epsilon_cutoff = 2e-3f},
      {.eta_cutoff = 5e-3f},
      {.top_a = 0.2f},
      {.top_h = 0.4f},
      {.temperature = 0.8f, .p_less = true},
      {.temperature = 0.8f, .min_k = true},
      {.temperature = 2, .top_k = 30, .min_k = true, .min_k_tau = 60},
      InOrder(Preset::kLlamaCpp, least),
      {.temperature = 0.9f, .typical_p = 0.05f, .min_keep = 12, .xtc_probability = 1, .xtc_threshold = 1e-3f},
      {.xtc_probability = 1, .xtc_threshold = 0.03f},
      {.top_k = 100, .dynamic_temperature_range = 0.8f, .dynamic_temperature_exponent = 1.7f},
      {.temperature = 0.9f, .smoothing_factor = 0.3f, .smoothing_curve = 2},
      {.mirostat = 1, .mirostat_tau = 3},
      {.temperature = 1.2f, .mirostat = 2, .mirostat_tau = 4},
      {.min_p = 0.01f, .adaptive_p = true, .adaptive_target = 0.2f},
  };
  // Each filter whose operand is the option, alone.
#define CASE_Threshold(name) cases.push_back({.temperature = 0.9f}), cases.back().name = 0.03f;
#define CASE_Mass(name) cases.push_back({.temperature = 0.9f}), cases.back().name = 0.6f;
#define CASE_Number(name) cases.push_back({.temperature = 0.9f}), cases.back().name = 7;
#define CASE_Flag(name) cases.push_back({.temperature = 0.9f}), cases.back().name = true;
#define CASE_Own(name)
#define SAMPLER(sampler, name, first, last, greedy, operand, vllm, llama_cpp, hf) CASE_##operand(name)
#include "kernels/law/options.inc"
#undef CASE_Threshold
#undef CASE_Mass
#undef CASE_Number
#undef CASE_Flag
#undef CASE_Own
  return cases;
}

std::vector<float> LogitsOf(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> logits(kVocabulary);
  const float spread = seed % 3 == 0 ? 0.7f : 2.5f;
  for (float& x : logits) {
    float sum = -2;
    for (int part = 0; part < 4; ++part) sum += float(random() >> 40) * 0x1p-24f;
    x = spread * 1.7f * sum + (random() % 100 == 0 ? 5.0f : 0.0f);
    if (seed % 3 == 1) x = std::round(x * 16) / 16;  // as bf16 ties
  }
  return logits;
}

void WriteOptions(const SamplingParameters& p) {
  std::printf("{");
#define LAW_NUMBER(name, type, value, form, low, high, effect, phase, text) WRITE(name)
#define LAW_FLAG(name, phase, text) WRITE(name)
#define LAW_MESSAGE(name, on, phase, more, text) WRITE_##on(name)
#define LAW_PART(name, part, member, type, value, form, low, high) WRITE(member)
#define WRITE(member) std::printf("\"" #member "\": %.9g, ", double(p.member));
#define WRITE_ByValue(name)
#define WRITE_ByPresence(name) WRITE(name)
#include "kernels/law/options.inc"
#undef WRITE
#undef WRITE_ByValue
#undef WRITE_ByPresence
  std::printf("\"order\": [");
  const auto order = p.order.empty() ? PresetOrder(Preset::kVllm) : std::span<const Sampler>(p.order);
  for (size_t i = 0; i < order.size(); ++i) {
    std::printf("%s\"%s\"", i == 0 ? "" : ", ", std::string(SamplerName(order[i])).c_str());
  }
  std::printf("]}");
}

void WriteRow(const SamplingParameters& options, uint64_t seed) {
  const std::vector<float> logits = LogitsOf(seed);
  kernels::RowParameters parameters;
  Compile(options, &parameters);
  parameters.processed_logprob = true;
  parameters.kept_tokens = true;
  kernels::RowRequest request;
  request.logits = logits.data();
  request.live_vocabulary = kVocabulary;
  request.parameters = &parameters;
  request.noise = {seed, 7, 0};
  request.sampler_state = kernels::InitialSamplerState(parameters.chain);
  const kernels::RowOutput answer = SampleRowReference(request);
  std::printf("{\"options\": ");
  WriteOptions(options);
  std::printf(", \"token\": %u, \"state\": %lld, \"next_state\": %lld, \"logits\": [", answer.token,
              static_cast<long long>(request.sampler_state), static_cast<long long>(answer.sampler_state));
  for (uint32_t id = 0; id < kVocabulary; ++id) std::printf("%s%.9g", id == 0 ? "" : ",", double(logits[id]));
  std::printf("], \"kept\": {");
  const double temperature = ProcessedTemperature(parameters, answer);
  for (size_t i = 0; i < answer.kept_tokens.size(); ++i) {
    const auto& [token, bits] = answer.kept_tokens[i];
    std::printf("%s\"%u\": %.9g", i == 0 ? "" : ",", token, double(Logprob(answer.processed, bits, temperature)));
  }
  std::printf("}}\n");
}

}  // namespace
}  // namespace sortition::law

int main() {
  using namespace sortition::law;
  uint64_t seed = 0;
  for (const SamplingParameters& options : Cases()) {
    for (uint32_t row = 0; row < kRows; ++row) WriteRow(options, ++seed);
  }
  return 0;
}
