// The table of ranges.
#include "kernels/law/ranges.h"

#include <cstdio>

namespace sortition::law {
namespace {

using P = SamplingParameters;

// Which values are accepted.
enum class Form {
  kClosed,    // [low, high]
  kAboveLow,  // (low, high]
  kZeroOrIn,  // 0, or [low, high]
};

struct Range {
  const char* option;
  const char* field;
  // One of the two is set.
  float P::*real;
  uint32_t P::*count;
  float low;
  float high;
  Form form = Form::kClosed;
};

constexpr Range kRanges[] = {
    {"temperature", "temperature", &P::temperature, nullptr, kMinTemperature, kMaxTemperature, Form::kZeroOrIn},
    {"top_k", "top_k", nullptr, &P::top_k, 0, kMaxTopK},
    {"top_p", "top_p", &P::top_p, nullptr, 0, kMaxTopP, Form::kAboveLow},
    {"min_p", "min_p", &P::min_p, nullptr, kMinMinP, kMaxMinP},
    {"repetition_penalty", "repetition_penalty", &P::repetition_penalty, nullptr, kMinRepetitionPenalty,
     kMaxRepetitionPenalty},
    {"frequency_penalty", "frequency_penalty", &P::frequency_penalty, nullptr, -kMaxAbsFrequencyPenalty,
     kMaxAbsFrequencyPenalty},
    {"presence_penalty", "presence_penalty", &P::presence_penalty, nullptr, -kMaxAbsPresencePenalty,
     kMaxAbsPresencePenalty},
    {"typical_p", "typical_p", &P::typical_p, nullptr, 0, 1, Form::kAboveLow},
    {"top_n_sigma", "top_n_sigma", &P::top_n_sigma, nullptr, kMinTopNSigma, kMaxTopNSigma, Form::kZeroOrIn},
    {"epsilon_cutoff", "epsilon_cutoff", &P::epsilon_cutoff, nullptr, 0, 1},
    {"eta_cutoff", "eta_cutoff", &P::eta_cutoff, nullptr, 0, 1},
    {"top_a", "top_a", &P::top_a, nullptr, 0, 1},
    {"top_h", "top_h", &P::top_h, nullptr, 0, 1},
    {"xtc_probability", "xtc.probability", &P::xtc_probability, nullptr, 0, 1},
    {"xtc_threshold", "xtc.threshold", &P::xtc_threshold, nullptr, 0, 1, Form::kAboveLow},
    {"dynamic_temperature_range", "dynamic_temperature.range", &P::dynamic_temperature_range, nullptr, 0,
     kMaxTemperature},
    {"dynamic_temperature_exponent", "dynamic_temperature.exponent", &P::dynamic_temperature_exponent, nullptr,
     kMinDynamicExponent, kMaxDynamicExponent},
    {"smoothing_factor", "quadratic_smoothing.factor", &P::smoothing_factor, nullptr, 0, kMaxSmoothingFactor},
    {"smoothing_curve", "quadratic_smoothing.curve", &P::smoothing_curve, nullptr, kMinSmoothingCurve,
     kMaxSmoothingCurve},
    {"mirostat", "mirostat.version", nullptr, &P::mirostat, 0, 2},
    {"mirostat_tau", "mirostat.tau", &P::mirostat_tau, nullptr, 0, kMaxMirostatTau, Form::kAboveLow},
    {"mirostat_eta", "mirostat.eta", &P::mirostat_eta, nullptr, 0, kMaxMirostatEta, Form::kAboveLow},
    {"mirostat_m", "mirostat.m", nullptr, &P::mirostat_m, kMinMirostatM, kMaxMirostatM},
    {"adaptive_target", "adaptive_p.target", &P::adaptive_target, nullptr, 0, 1},
    {"adaptive_decay", "adaptive_p.decay", &P::adaptive_decay, nullptr, 0, kMaxAdaptiveDecay},
    {"min_k_tau", "min_k.tau", &P::min_k_tau, nullptr, 0, kMaxMinKTau},
    {"min_keep", "min_keep", nullptr, &P::min_keep, 0, kMaxMinKeep},
};

// Seven digits show every bound as it is written.
std::string Text(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.7g", number);
  return text;
}

std::string LimitOf(const Range& range) {
  const std::string low = Text(range.low);
  const std::string high = Text(range.high);
  switch (range.form) {
    case Form::kClosed:
      return low + ".." + high;
    case Form::kAboveLow:
      return "(" + low + ", " + high + "]";
    case Form::kZeroOrIn:
      break;
  }
  return "0 or " + low + ".." + high;
}

// Written so that NaN is not accepted.
bool Accepts(const Range& range, double value) {
  const bool in = value >= range.low && value <= range.high;
  switch (range.form) {
    case Form::kClosed:
      return in;
    case Form::kAboveLow:
      return in && value != range.low;
    case Form::kZeroOrIn:
      break;
  }
  return in || value == 0;
}

}  // namespace

std::optional<OutOfRange> FindOutOfRange(const SamplingParameters& parameters) {
  for (const Range& range : kRanges) {
    const double value = range.real != nullptr ? double(parameters.*range.real) : double(parameters.*range.count);
    if (!Accepts(range, value)) return OutOfRange{range.option, range.field, LimitOf(range), Text(value)};
  }
  return std::nullopt;
}

}  // namespace sortition::law
