// Takes the options by the lines of the table.
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

}  // namespace

law::SamplingParameters PlainSamplers(const v1::SamplingParameters& p) {
  law::SamplingParameters law;
#define LAW_NUMBER(name, type, value, form, low, high, effect, phase, text) \
  if (p.has_##name()) law.name = p.name();
#define LAW_FLAG(name, phase, text) law.name = p.name();
#define LAW_MESSAGE(name, on, phase, more, text) TAKE_##on(name)
#define TAKE_ByValue(name)
#define TAKE_ByPresence(name) law.name = p.has_##name();
#define LAW_PART(name, part, member, type, value, form, low, high) \
  if (p.name().has_##part()) law.member = p.name().part();
#include "kernels/law/options.inc"
#undef TAKE_ByValue
#undef TAKE_ByPresence
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
