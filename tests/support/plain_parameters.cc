// Field by field.
#include "tests/support/plain_parameters.h"

#include <string>
#include <string_view>
#include <vector>

#include "kernels/law/chain.h"

namespace sortition::testing {
namespace {

std::vector<law::Sampler> OrderOf(const v1::Chain& chain) {
  std::vector<law::Sampler> listed;
  for (const std::string& name : chain.explicit_().samplers()) {
    for (const law::Sampler sampler : law::PresetOrder(law::Preset::kVllm)) {
      const std::string_view own = law::SamplerName(sampler);
      if (name == own || (name == "dynamic_temperature" && own == "temperature")) listed.push_back(sampler);
    }
  }
  if (!listed.empty()) return listed;
  law::Preset preset = law::Preset::kVllm;
  if (chain.preset() == v1::Chain::PRESET_LLAMA_CPP) preset = law::Preset::kLlamaCpp;
  if (chain.preset() == v1::Chain::PRESET_HF) preset = law::Preset::kHf;
  const auto order = law::PresetOrder(preset);
  return {order.begin(), order.end()};
}

void TakeReshapers(const v1::SamplingParameters& p, law::SamplingParameters* law) {
  if (p.xtc().has_probability()) law->xtc_probability = p.xtc().probability();
  if (p.xtc().has_threshold()) law->xtc_threshold = p.xtc().threshold();
  if (p.dynamic_temperature().has_range()) law->dynamic_temperature_range = p.dynamic_temperature().range();
  if (p.dynamic_temperature().has_exponent()) law->dynamic_temperature_exponent = p.dynamic_temperature().exponent();
  if (p.quadratic_smoothing().has_factor()) law->smoothing_factor = p.quadratic_smoothing().factor();
  if (p.quadratic_smoothing().has_curve()) law->smoothing_curve = p.quadratic_smoothing().curve();
  law->mirostat = p.mirostat().version();
  if (p.mirostat().has_tau()) law->mirostat_tau = p.mirostat().tau();
  if (p.mirostat().has_eta()) law->mirostat_eta = p.mirostat().eta();
  if (p.mirostat().has_m()) law->mirostat_m = p.mirostat().m();
  law->adaptive_p = p.has_adaptive_p();
  if (p.adaptive_p().has_target()) law->adaptive_target = p.adaptive_p().target();
  if (p.adaptive_p().has_decay()) law->adaptive_decay = p.adaptive_p().decay();
}

}  // namespace

law::SamplingParameters PlainSamplers(const v1::SamplingParameters& p) {
  law::SamplingParameters law;
  if (p.has_temperature()) law.temperature = p.temperature();
  if (p.has_top_k()) law.top_k = p.top_k();
  if (p.has_top_p()) law.top_p = p.top_p();
  if (p.has_min_p()) law.min_p = p.min_p();
  if (p.has_repetition_penalty()) law.repetition_penalty = p.repetition_penalty();
  if (p.has_frequency_penalty()) law.frequency_penalty = p.frequency_penalty();
  if (p.has_presence_penalty()) law.presence_penalty = p.presence_penalty();
  if (p.has_typical_p()) law.typical_p = p.typical_p();
  if (p.has_top_n_sigma()) law.top_n_sigma = p.top_n_sigma();
  if (p.has_epsilon_cutoff()) law.epsilon_cutoff = p.epsilon_cutoff();
  if (p.has_eta_cutoff()) law.eta_cutoff = p.eta_cutoff();
  if (p.has_top_a()) law.top_a = p.top_a();
  if (p.has_top_h()) law.top_h = p.top_h();
  law.p_less = p.p_less();
  law.min_k = p.has_min_k();
  if (p.min_k().has_tau()) law.min_k_tau = p.min_k().tau();
  law.min_keep = p.min_keep();
  TakeReshapers(p, &law);
  law.order = OrderOf(p.chain());
  return law;
}

kernels::RowParameters PlainRowParameters(const v1::SamplingParameters& p) {
  kernels::RowParameters compiled;
  law::Compile(PlainSamplers(p), &compiled);
  compiled.mask_nan = p.nan_policy() == v1::NAN_POLICY_MASK;
  compiled.raw_logprob = p.has_raw_logprobs();
  compiled.raw_top = p.raw_logprobs().top();
  compiled.processed_logprob = p.has_processed_logprobs();
  compiled.processed_top = p.processed_logprobs().top();
  compiled.tempered_logprob = p.has_tempered_logprobs();
  compiled.tempered_top = p.tempered_logprobs().top();
  compiled.kept_log_mass = p.kept_log_mass();
  compiled.entropy = p.entropy();
  compiled.kept_count = p.kept_set().count();
  compiled.kept_tokens = p.kept_set().tokens();
  return compiled;
}

}  // namespace sortition::testing
