// Takes the options by the lines of options.inc, and checks how they go together.
#include "service/wire/law_options.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/law/chain.h"
#include "kernels/law/options.h"
#include "service/checks.h"

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
  Taker(const v1::SamplingParameters& parameters, uint32_t live_vocabulary, absl::string_view path,
        law::SamplingParameters* law)
      : p_(parameters), live_vocabulary_(live_vocabulary), path_(path), law_(*law) {}

  std::optional<Refusal> Run() {
    Values();
    Ranges();
    if (!refusal_) Combinations();
    if (!refusal_) Order();
    return refusal_;
  }

 private:
  std::string Field(absl::string_view name) const { return absl::StrCat(path_, ".", name); }

  // -0 becomes 0.
  static void Set(float value, float* to) { *to = WithoutNegativeZero(value); }
  static void Set(uint32_t value, uint32_t* to) { *to = value; }

  void Values() {
#define LAW_NUMBER(name, type, value, form, low, high, effect, phase, text) \
  if (p_.has_##name()) Set(p_.name(), &law_.name);
#define LAW_FLAG(name, phase, text) law_.name = p_.name();
#define LAW_MESSAGE(name, on, phase, more, text) TAKE_##on(name)
#define TAKE_ByValue(name)
#define TAKE_ByPresence(name) law_.name = p_.has_##name();
#define LAW_PART(name, part, member, type, value, form, low, high) \
  if (p_.name().has_##part()) Set(p_.name().part(), &law_.member);
#include "kernels/law/options.inc"
#undef TAKE_ByValue
#undef TAKE_ByPresence
    // Values of the live vocabulary's size or more are off, so every value is in range.
    if (law_.top_k >= live_vocabulary_) law_.top_k = 0;
  }

  void Ranges() {
    if (const auto found = law::FindOutOfRange(law_)) {
      refusal_ = Refusal{Reason::kOutOfRange, Field({found->field.data(), found->field.size()}), found->limit,
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
    constexpr absl::string_view kGreedy = "temperature 0 takes the first token";
#define GREEDY_Keeps(sampler, name)
#define GREEDY_Drops(sampler, name) \
  if (law::IsOn(law_, Sampler::k##sampler)) return Contradiction(#name, std::string(kGreedy));
#define SAMPLER(sampler, name, first, last, greedy, operand, vllm, llama_cpp, hf) GREEDY_##greedy(sampler, name)
#include "kernels/law/options.inc"
#undef GREEDY_Keeps
#undef GREEDY_Drops
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
  const uint32_t live_vocabulary_;
  const absl::string_view path_;
  law::SamplingParameters& law_;
  std::optional<Refusal> refusal_;
};

}  // namespace

std::optional<Refusal> TakeLawOptions(const v1::SamplingParameters& parameters, uint32_t live_vocabulary,
                                      absl::string_view path, law::SamplingParameters* law) {
  return Taker(parameters, live_vocabulary, path, law).Run();
}

}  // namespace sortition::service
