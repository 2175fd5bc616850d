// Takes the samplers of the chain and their order from the message, and checks how they go together.
#include "service/request/chain_options.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/law/chain.h"
#include "kernels/law/ranges.h"
#include "service/request/checks.h"

namespace sortition::service {
namespace {

using law::Sampler;

absl::string_view NameOf(Sampler sampler) {
  const std::string_view name = law::SamplerName(sampler);
  return {name.data(), name.size()};
}

std::optional<Sampler> SamplerNamed(absl::string_view name) {
  if (name == "dynamic_temperature") return Sampler::kTemperature;
  for (const Sampler sampler : law::PresetOrder(law::Preset::kVllm)) {
    if (NameOf(sampler) == name) return sampler;
  }
  return std::nullopt;
}

class Taker {
 public:
  Taker(const v1::SamplingParameters& parameters, absl::string_view path, law::SamplingParameters* law)
      : p_(parameters), path_(path), law_(*law) {}

  std::optional<Refusal> Run() {
    Filters();
    Reshapers();
    Ranges();
    if (!refusal_) Combinations();
    if (!refusal_) Order();
    return refusal_;
  }

 private:
  std::string Field(absl::string_view name) const { return absl::StrCat(path_, ".", name); }

  // -0 becomes 0.
  static void Set(bool is_set, float value, float* to) {
    if (is_set) *to = value == 0 ? 0.0f : value;
  }

  void Filters() {
    Set(p_.has_typical_p(), p_.typical_p(), &law_.typical_p);
    Set(p_.has_top_n_sigma(), p_.top_n_sigma(), &law_.top_n_sigma);
    Set(p_.has_epsilon_cutoff(), p_.epsilon_cutoff(), &law_.epsilon_cutoff);
    Set(p_.has_eta_cutoff(), p_.eta_cutoff(), &law_.eta_cutoff);
    Set(p_.has_top_a(), p_.top_a(), &law_.top_a);
    Set(p_.has_top_h(), p_.top_h(), &law_.top_h);
    law_.p_less = p_.p_less();
    law_.min_k = p_.has_min_k();
    Set(p_.min_k().has_tau(), p_.min_k().tau(), &law_.min_k_tau);
    law_.min_keep = p_.min_keep();
    Set(p_.xtc().has_probability(), p_.xtc().probability(), &law_.xtc_probability);
    Set(p_.xtc().has_threshold(), p_.xtc().threshold(), &law_.xtc_threshold);
  }

  void Reshapers() {
    const v1::DynamicTemperature& dynamic = p_.dynamic_temperature();
    Set(dynamic.has_range(), dynamic.range(), &law_.dynamic_temperature_range);
    Set(dynamic.has_exponent(), dynamic.exponent(), &law_.dynamic_temperature_exponent);
    const v1::QuadraticSmoothing& smoothing = p_.quadratic_smoothing();
    Set(smoothing.has_factor(), smoothing.factor(), &law_.smoothing_factor);
    Set(smoothing.has_curve(), smoothing.curve(), &law_.smoothing_curve);
    const v1::Mirostat& mirostat = p_.mirostat();
    law_.mirostat = mirostat.version();
    Set(mirostat.has_tau(), mirostat.tau(), &law_.mirostat_tau);
    Set(mirostat.has_eta(), mirostat.eta(), &law_.mirostat_eta);
    if (mirostat.has_m()) law_.mirostat_m = mirostat.m();
    const v1::AdaptiveP& adaptive = p_.adaptive_p();
    law_.adaptive_p = p_.has_adaptive_p();
    Set(adaptive.has_target(), adaptive.target(), &law_.adaptive_target);
    Set(adaptive.has_decay(), adaptive.decay(), &law_.adaptive_decay);
  }

  void Ranges() {
    if (const auto found = law::FindOutOfRange(law_)) {
      refusal_ = Refusal{Reason::kOutOfRange, Field(found->field), found->limit,
                         absl::StrCat(found->value, " is out of range")};
    } else if (law_.adaptive_p && !p_.adaptive_p().has_target()) {
      refusal_ = MissingField(Field("adaptive_p.target"));
    }
  }

  void Contradiction(absl::string_view name, std::string message) {
    refusal_ = Refusal{Reason::kContradiction, Field(name), "", std::move(message)};
  }

  void Combinations() {
    if (law_.mirostat != 0 && law_.adaptive_p) return Contradiction("adaptive_p", "mirostat is on, too");
    if (law_.temperature != 0) return;
    // Greedy takes the first token in order. These samplers might drop it.
    constexpr absl::string_view kGreedy = "temperature 0 takes the first token";
    for (const Sampler sampler : {Sampler::kTypicalP, Sampler::kXtc, Sampler::kMirostat, Sampler::kAdaptiveP}) {
      if (law::IsOn(law_, sampler)) return Contradiction(NameOf(sampler), std::string(kGreedy));
    }
    if (law_.dynamic_temperature_range != 0) Contradiction("dynamic_temperature", std::string(kGreedy));
  }

  void Order() {
    const v1::Chain& chain = p_.chain();
    if (!chain.has_explicit_()) {
      law::Preset preset = law::Preset::kVllm;
      if (chain.preset() == v1::Chain::PRESET_LLAMA_CPP) preset = law::Preset::kLlamaCpp;
      if (chain.preset() == v1::Chain::PRESET_HF) preset = law::Preset::kHf;
      const std::span<const Sampler> order = law::PresetOrder(preset);
      law_.order.assign(order.begin(), order.end());
      return;
    }
    // An empty explicit order is accepted if no sampler is on. The law then takes its default order.
    const auto& names = chain.explicit_().samplers();
    for (int i = 0; i < names.size(); ++i) {
      const std::string field = absl::StrCat("chain.explicit.samplers[", i, "]");
      const std::optional<Sampler> sampler = SamplerNamed(names[i]);
      if (!sampler) {
        refusal_ = Refusal{Reason::kOutOfRange, Field(field), "a sampler of the chain",
                           "is no field that names a sampler whose place can be chosen"};
        return;
      }
      if (IsListed(*sampler)) return Contradiction(field, absl::StrCat(names[i], " has a place already"));
      if (!law_.order.empty() && (IsListed(Sampler::kMirostat) || IsListed(Sampler::kAdaptiveP)) &&
          *sampler != Sampler::kMirostat && *sampler != Sampler::kAdaptiveP) {
        return Contradiction(field, "comes after one that has to be last");
      }
      law_.order.push_back(*sampler);
    }
    for (const Sampler sampler : law::PresetOrder(law::Preset::kVllm)) {
      if (law::IsOn(law_, sampler) && !IsListed(sampler)) {
        const bool is_dynamic = sampler == Sampler::kTemperature && law_.dynamic_temperature_range != 0;
        return Contradiction(is_dynamic ? "dynamic_temperature" : NameOf(sampler),
                             "is on, but not in chain.explicit.samplers");
      }
    }
  }

  bool IsListed(Sampler sampler) const {
    return std::find(law_.order.begin(), law_.order.end(), sampler) != law_.order.end();
  }

  const v1::SamplingParameters& p_;
  const absl::string_view path_;
  law::SamplingParameters& law_;
  std::optional<Refusal> refusal_;
};

}  // namespace

std::optional<Refusal> TakeChainOptions(const v1::SamplingParameters& parameters, absl::string_view path,
                                        law::SamplingParameters* law) {
  return Taker(parameters, path, law).Run();
}

}  // namespace sortition::service
