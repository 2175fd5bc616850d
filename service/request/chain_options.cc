// Ranges, contradictions, and orders by name.
#include "service/request/chain_options.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/law/chain.h"
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
    if (!refusal_) Combinations();
    if (!refusal_) Order();
    return refusal_;
  }

 private:
  std::string Field(absl::string_view name) const { return absl::StrCat(path_, ".", name); }

  // Sets `*to` to a value in [low, high], or in (low, high].
  void Take(bool is_set, float value, float low, float high, bool open, absl::string_view name, float* to) {
    if (refusal_ || !is_set) return;
    if (value >= low && value <= high && !(open && value == low)) {
      *to = value == 0 ? 0.0f : value;  // -0 is 0
      return;
    }
    refusal_ = Refusal{Reason::kOutOfRange, Field(name), absl::StrCat(open ? "above " : "", low, "..", high),
                       absl::StrCat(value, " is out of range")};
  }

  void Filters() {
    Take(p_.has_typical_p(), p_.typical_p(), 0, 1, true, "typical_p", &law_.typical_p);
    if (p_.top_n_sigma() != 0) {
      Take(true, p_.top_n_sigma(), law::kMinTopNSigma, law::kMaxTopNSigma, false, "top_n_sigma", &law_.top_n_sigma);
    }
    Take(p_.has_epsilon_cutoff(), p_.epsilon_cutoff(), 0, 1, false, "epsilon_cutoff", &law_.epsilon_cutoff);
    Take(p_.has_eta_cutoff(), p_.eta_cutoff(), 0, 1, false, "eta_cutoff", &law_.eta_cutoff);
    Take(p_.has_top_a(), p_.top_a(), 0, 1, false, "top_a", &law_.top_a);
    Take(p_.has_top_h(), p_.top_h(), 0, 1, false, "top_h", &law_.top_h);
    law_.p_less = p_.p_less();
    const v1::Xtc& xtc = p_.xtc();
    Take(xtc.has_probability(), xtc.probability(), 0, 1, false, "xtc.probability", &law_.xtc_probability);
    Take(xtc.has_threshold(), xtc.threshold(), 0, 1, true, "xtc.threshold", &law_.xtc_threshold);
  }

  void Reshapers() {
    const v1::DynamicTemperature& dynamic = p_.dynamic_temperature();
    Take(dynamic.has_range(), dynamic.range(), 0, law::kMaxTemperature, false, "dynamic_temperature.range",
         &law_.dynamic_temperature_range);
    Take(dynamic.has_exponent(), dynamic.exponent(), law::kMinDynamicExponent, law::kMaxDynamicExponent, false,
         "dynamic_temperature.exponent", &law_.dynamic_temperature_exponent);
    const v1::QuadraticSmoothing& smoothing = p_.quadratic_smoothing();
    Take(smoothing.has_factor(), smoothing.factor(), 0, law::kMaxSmoothingFactor, false, "quadratic_smoothing.factor",
         &law_.smoothing_factor);
    Take(smoothing.has_curve(), smoothing.curve(), law::kMinSmoothingCurve, law::kMaxSmoothingCurve, false,
         "quadratic_smoothing.curve", &law_.smoothing_curve);
    const v1::Mirostat& mirostat = p_.mirostat();
    if (!refusal_) refusal_ = CheckRange<uint32_t>(mirostat.version(), 0, 2, Field("mirostat.version"));
    law_.mirostat = mirostat.version();
    Take(mirostat.has_tau(), mirostat.tau(), 0, law::kMaxMirostatTau, true, "mirostat.tau", &law_.mirostat_tau);
    Take(mirostat.has_eta(), mirostat.eta(), 0, law::kMaxMirostatEta, true, "mirostat.eta", &law_.mirostat_eta);
    if (mirostat.has_m()) law_.mirostat_m = mirostat.m();
    if (!refusal_) {
      refusal_ = CheckRange<uint32_t>(law_.mirostat_m, law::kMinMirostatM, law::kMaxMirostatM, Field("mirostat.m"));
    }
    const v1::AdaptiveP& adaptive = p_.adaptive_p();
    law_.adaptive_p = p_.has_adaptive_p();
    if (law_.adaptive_p && !adaptive.has_target() && !refusal_) refusal_ = MissingField(Field("adaptive_p.target"));
    Take(adaptive.has_target(), adaptive.target(), 0, 1, false, "adaptive_p.target", &law_.adaptive_target);
    Take(adaptive.has_decay(), adaptive.decay(), 0, law::kMaxAdaptiveDecay, false, "adaptive_p.decay",
         &law_.adaptive_decay);
  }

  void Contradiction(absl::string_view name, std::string message) {
    refusal_ = Refusal{Reason::kContradiction, Field(name), "", std::move(message)};
  }

  void Combinations() {
    if (law_.mirostat != 0 && law_.adaptive_p) return Contradiction("adaptive_p", "mirostat is on, too");
    if (law_.temperature != 0) return;
    // Greedy takes the first token in order, which these might drop or pass over.
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
    // An order without a sampler is one, too; the law's empty order means the default.
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
        return Contradiction(NameOf(sampler), "is on, but not in chain.explicit.samplers");
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
