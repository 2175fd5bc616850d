// Puts the descriptions together from the lines of the table.
#include "service/wire/parameter_table.h"

#include <algorithm>
#include <utility>

#include "kernels/law/options.h"

namespace sortition::service {
namespace {

class Builder {
 public:
  std::vector<ParameterDescription> Run() {
#define LAW_NUMBER(name, type, value, form, low, high, effect, phase, text) Number(#name, k##phase, text);
#define LAW_FLAG(name, phase, text) Add({#name, "", "off", text, k##phase});
#define LAW_MESSAGE(name, on, phase, more, text) Message(#name, k##on, k##phase, more, text);
#define LAW_PART(name, part, member, type, value, form, low, high) Part(#name "." #part, #part);
#define HISTORY_NUMBER(name, value, form, low, high, text) Number(#name, kText, text);
#define HISTORY_MESSAGE(name, on, more, text) Message(#name, k##on, kText, more, text);
#define HISTORY_PART(name, part, type, value, form, low, high, effect) Part(#name "." #part, #part);
#define LIST_OPTION(name, phase, range, value, text) \
  Add({#name, range, value, text, k##phase, false, std::string_view(#phase) == "Answer"});
#define STEP_OPTION(name, range, value, text) Add({#name, range, value, text, false, true});
#include "kernels/law/options.inc"
    End();
    return std::move(list_);
  }

 private:
  static constexpr bool kPhase = true, kPhaseState = true, kText = false, kTextState = false, kAnswer = false;
  static constexpr bool kByPresence = true, kByValue = false, kNever = false;

  void Add(ParameterDescription description) {
    End();
    list_.push_back(std::move(description));
  }
  void Number(std::string_view name, bool in_phases, std::string_view text) {
    const law::NumberOption& number = law::NumberNamed(name);
    const bool is_any = number.form == law::RangeForm::kOffAbove;
    Add({name, is_any ? "any; 0 or >= vocabulary = off" : law::RangeText(number), law::NumberText(number.value), text,
         in_phases});
  }
  void Message(std::string_view name, bool by_presence, bool in_phases, std::string_view more, std::string_view text) {
    Add({name, "", by_presence ? "absent" : "", text, in_phases});
    more_ = more;
  }
  void Part(std::string_view field, std::string_view part) {
    const law::NumberOption& number = law::NumberNamed(field);
    Append(std::string(part) + " " + law::RangeText(number), &list_.back().range);
    const bool is_required = number.form == law::RangeForm::kRequired;
    Append(std::string(part) + " " + (is_required ? "required" : law::NumberText(number.value)),
           &list_.back().default_value);
  }
  // The last message has all of its parts.
  void End() {
    if (!list_.empty()) list_.back().range.append(more_);
    more_ = {};
  }
  static void Append(const std::string& item, std::string* list) {
    if (!list->empty()) list->append(", ");
    list->append(item);
  }

  std::vector<ParameterDescription> list_;
  std::string_view more_;  // text about the last message's parts that are not numbers
};

struct NamedFeature {
  std::string_view name;
  kernels::Features feature;
};
using kernels::FeatureOf;
using kernels::StageKind;
constexpr NamedFeature kNamedFeatures[] = {
#define SAMPLER(sampler, name, first, last, greedy, operand, vllm, llama_cpp, hf) \
  {#name, FeatureOf(StageKind::first) | FeatureOf(StageKind::last)},
#include "kernels/law/options.inc"
    {"dynamic_temperature", FeatureOf(StageKind::kDynamicTemperature)},
    {"entropy", kernels::kFeatureEntropy},
    {"kept_set", kernels::kFeatureKeptSet},
    {"logprob_token_ids", kernels::kFeatureRequested},
    {"tempered_logprobs", kernels::kFeatureTempered},
    {"kept_log_mass", kernels::kFeatureTempered},
    {"min_keep", kernels::kFeatureMinKeep},
    {"score", kernels::kFeatureScore},
    {"VERIFY_MODE_REJECTION", kernels::kFeatureVerify},
    {"VERIFY_MODE_BLOCK", kernels::kFeatureVerify | kernels::kFeatureBlock},
    {"DRAFT_SAMPLING_WITHOUT_REPLACEMENT", kernels::kFeatureVerify | kernels::kFeatureRounds},
    {"DRAFT_SAMPLING_WITH_REPLACEMENT", kernels::kFeatureVerify | kernels::kFeatureRounds},
};

}  // namespace

const std::vector<ParameterDescription>& Parameters() {
  static const auto& list = *new std::vector<ParameterDescription>(Builder().Run());
  return list;
}

const ParameterDescription* FindParameter(std::string_view name) {
  const auto found = std::ranges::find(Parameters(), name, &ParameterDescription::name);
  return found == Parameters().end() ? nullptr : &*found;
}

std::vector<std::string_view> NamesOf(kernels::Features features) {
  std::vector<std::string_view> names;
  for (const NamedFeature& named : kNamedFeatures) {
    if ((named.feature & features) != 0) names.push_back(named.name);
  }
  return names;
}

std::string DevicesLack(kernels::Features features) {
  std::string message = "no device of this server has";
  const char* separator = " ";
  for (const std::string_view name : NamesOf(features)) {
    message.append(separator).append(name);
    separator = ", ";
  }
  return message;
}

}  // namespace sortition::service
