// The table of options: checks and texts.
#include "kernels/law/options.h"

#include <cmath>
#include <cstdio>

namespace sortition::law {

std::string NumberText(double number) {
  // Seven digits show every bound as it is written. A count is shown in full.
  char text[32];
  const bool is_count = std::abs(number) < 1e15 && number == std::floor(number);
  std::snprintf(text, sizeof text, is_count ? "%.0f" : "%.7g", number);
  return text;
}

std::string RangeText(const NumberOption& number) {
  const std::string low = NumberText(number.least);
  const std::string high =
      number.form == RangeForm::kUpTo ? std::string(number.most.limit) : NumberText(number.most.value);
  switch (number.form) {
    case RangeForm::kAboveLow:
      return "(" + low + ", " + high + "]";
    case RangeForm::kZeroOr:
      return "0 or " + low + ".." + high;
    case RangeForm::kOneOr:
      return "1 or " + low + ".." + high;
    case RangeForm::kClosed:
    case RangeForm::kRequired:
    case RangeForm::kUpTo:
    case RangeForm::kOffAbove:
      break;
  }
  return low + ".." + high;
}

// Written so that NaN is not accepted.
bool Accepts(const NumberOption& number, double value, double most) {
  const bool in = value >= number.least && value <= most;
  switch (number.form) {
    case RangeForm::kAboveLow:
      return in && value != number.least;
    case RangeForm::kZeroOr:
      return in || value == 0;
    case RangeForm::kOneOr:
      return in || value == 1;
    case RangeForm::kClosed:
    case RangeForm::kRequired:
    case RangeForm::kUpTo:
    case RangeForm::kOffAbove:
      break;
  }
  return in;
}

std::optional<OutOfRange> FindOutOfRange(const SamplingParameters& parameters) {
  for (const NumberOption& number : kNumberOptions) {
    const auto& [real, count] = number.member;
    if (real == nullptr && count == nullptr) continue;
    const double value = real != nullptr ? double(parameters.*real) : double(parameters.*count);
    if (!Accepts(number, value, number.most.value))
      return OutOfRange{number.name, number.field, RangeText(number), NumberText(value)};
  }
  return std::nullopt;
}

}  // namespace sortition::law
