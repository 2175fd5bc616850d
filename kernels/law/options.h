// The options of options.inc as a table: ranges, defaults and effects, for code that takes options from outside.
//
// Every function here is pure and thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/check.h"
#include "kernels/law/parameters.h"

namespace sortition::law {

// The columns `form` and `effect` of options.inc.
enum class RangeForm : uint8_t { kClosed, kRequired, kAboveLow, kZeroOr, kOneOr, kUpTo, kOffAbove };
enum class Effect : uint8_t { kNone, kFewerBelow, kFewerAbove, kCounts, kWindow };

// The member of SamplingParameters that a number sets, if it is one of the law.
struct OptionMember {
  constexpr OptionMember() = default;
  constexpr OptionMember(float SamplingParameters::*member) : real(member) {}
  constexpr OptionMember(uint32_t SamplingParameters::*member) : count(member) {}

  float SamplingParameters::*real = nullptr;
  uint32_t SamplingParameters::*count = nullptr;
};

// The upper end of a range: a number, or with kUpTo the name of one of the server's limits.
struct OptionMost {
  constexpr OptionMost(double most) : value(most) {}
  constexpr OptionMost(const char* name) : limit(name) {}

  double value = 0;
  std::string_view limit;
};

// A number among the options.
struct NumberOption {
  std::string_view field;  // its path in the contract's SamplingParameters: "xtc.threshold"
  std::string_view name;   // the member's; without a member the path
  OptionMember member;
  double value;  // where it is absent
  RangeForm form;
  double least;
  OptionMost most;
  Effect effect;

  // Returns true if 0 stands for all tokens: it is the largest value then.
  constexpr bool zero_is_all() const {
    return value == 0 && (effect == Effect::kFewerBelow || effect == Effect::kCounts || effect == Effect::kWindow);
  }
};

#define OPTION_MOST_Closed(high) high
#define OPTION_MOST_Required(high) high
#define OPTION_MOST_AboveLow(high) high
#define OPTION_MOST_ZeroOr(high) high
#define OPTION_MOST_OneOr(high) high
#define OPTION_MOST_OffAbove(high) high
#define OPTION_MOST_UpTo(high) #high
#define OPTION_ROW(field, name, member, value, form, low, high, effect) \
  {field, name, member, value, RangeForm::k##form, low, OPTION_MOST_##form(high), Effect::k##effect},
inline constexpr NumberOption kNumberOptions[] = {
#define LAW_NUMBER(name, type, value, form, low, high, effect, phase, text) \
  OPTION_ROW(#name, #name, &SamplingParameters::name, value, form, low, high, effect)
#define LAW_PART(name, part, member, type, value, form, low, high) \
  OPTION_ROW(#name "." #part, #member, &SamplingParameters::member, value, form, low, high, None)
#define HISTORY_NUMBER(name, value, form, low, high, text) OPTION_ROW(#name, #name, {}, value, form, low, high, None)
#define HISTORY_PART(name, part, type, value, form, low, high, effect) \
  OPTION_ROW(#name "." #part, #name "." #part, {}, value, form, low, high, effect)
#include "kernels/law/options.inc"
};
// FindOutOfRange knows no limit of a server.
static_assert(std::ranges::none_of(kNumberOptions, [](const NumberOption& number) {
  return number.form == RangeForm::kUpTo && (number.member.real != nullptr || number.member.count != nullptr);
}));
#undef OPTION_ROW
#undef OPTION_MOST_Closed
#undef OPTION_MOST_Required
#undef OPTION_MOST_AboveLow
#undef OPTION_MOST_ZeroOr
#undef OPTION_MOST_OneOr
#undef OPTION_MOST_OffAbove
#undef OPTION_MOST_UpTo

// Returns the number of this field; null if there is none.
constexpr const NumberOption* FindNumber(std::string_view field) {
  for (const NumberOption& number : kNumberOptions) {
    if (number.field == field) return &number;
  }
  return nullptr;
}

// As FindNumber, for a field that exists. Compares no pointer: with the undefined-behaviour sanitizer GCC 12 finds that
// no constant expression.
constexpr const NumberOption& NumberNamed(std::string_view field) {
  for (const NumberOption& number : kNumberOptions) {
    if (number.field == field) return number;
  }
  CheckFailed("a number of this name", __FILE__, __LINE__);
}

// Returns true if the value is in the number's range. `most`, the range's end, is the table's or a limit's value. NaN
// is in no range.
bool Accepts(const NumberOption& number, double value, double most);

// Returns the accepted values as text: "0 or 0.01..100", "(0, 20]", "0..max_history".
std::string RangeText(const NumberOption& number);
// Returns a number as it is written in the table.
std::string NumberText(double number);

// An option whose value is out of range.
struct OutOfRange {
  std::string_view name;   // of the member, such as "mirostat_tau"
  std::string_view field;  // of the contract's SamplingParameters, such as "mirostat.tau"
  std::string limit;       // RangeText
  std::string value;       // as given
};

// Returns the first option, in the table's order, with a value that Compile does not accept. Ignores combinations and
// `order`.
std::optional<OutOfRange> FindOutOfRange(const SamplingParameters& parameters);

}  // namespace sortition::law
