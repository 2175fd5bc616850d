// Options, judged and compiled.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "client/sortition/convert.h"
#include "client/sortition/sampler.h"
#include "kernels/law/logprob.h"

namespace sortition {
namespace {

Status CheckRange(const char* name, double value, double least, double most) {
  if (value >= least && value <= most) return {};
  return InvalidArgument(absl::StrCat(name, " is ", value, ", not in [", least, ", ", most, "]"));
}

Status CheckParameters(const law::SamplingParameters& p) {
  if (p.temperature != 0) {
    const Status status = CheckRange("temperature", p.temperature, law::kMinTemperature, law::kMaxTemperature);
    if (!status.ok()) return status;
  }
  const Status checks[] = {
      CheckRange("top_k", p.top_k, 0, law::kMaxTopK),
      // Above 0.
      CheckRange("top_p", p.top_p, std::nextafter(0.0f, 1.0f), law::kMaxTopP),
      CheckRange("min_p", p.min_p, law::kMinMinP, law::kMaxMinP),
      CheckRange("repetition_penalty", p.repetition_penalty, law::kMinRepetitionPenalty, law::kMaxRepetitionPenalty),
      CheckRange("frequency_penalty", std::abs(p.frequency_penalty), 0, law::kMaxAbsFrequencyPenalty),
      CheckRange("presence_penalty", std::abs(p.presence_penalty), 0, law::kMaxAbsPresencePenalty)};
  for (const Status& status : checks) {
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace

Status ToPublic(const absl::Status& status) {
  std::string message(status.message());
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return {};
    case absl::StatusCode::kInvalidArgument:
      return {StatusCode::kInvalidArgument, std::move(message)};
    case absl::StatusCode::kFailedPrecondition:
      return {StatusCode::kFailedPrecondition, std::move(message)};
    case absl::StatusCode::kNotFound:
      return {StatusCode::kNotFound, std::move(message)};
    case absl::StatusCode::kResourceExhausted:
      return {StatusCode::kResourceExhausted, std::move(message)};
    case absl::StatusCode::kUnavailable:
      return {StatusCode::kUnavailable, std::move(message)};
    default:
      return {StatusCode::kInternal, std::move(message)};
  }
}

Status Compile(const RowOptions& options, kernels::RowParameters* compiled) {
  if (const Status status = CheckParameters(options.parameters); !status.ok()) return status;
  if (options.raw_top > kernels::kMaxTopLogprobs || options.processed_top > kernels::kMaxTopLogprobs) {
    return InvalidArgument(absl::StrCat("raw_top or processed_top is above ", kernels::kMaxTopLogprobs));
  }
  if ((options.raw_top != 0 && !options.raw_logprob) || (options.processed_top != 0 && !options.processed_logprob)) {
    return InvalidArgument("raw_top needs raw_logprob, processed_top needs processed_logprob");
  }
  *compiled = kernels::RowParameters();
  law::Compile(options.parameters, compiled);
  compiled->mask_nan = options.mask_nan;
  compiled->raw_logprob = options.raw_logprob;
  compiled->processed_logprob = options.processed_logprob;
  compiled->raw_top = options.raw_top;
  compiled->processed_top = options.processed_top;
  return {};
}

uint32_t PenaltyBits(const law::SamplingParameters& parameters, uint32_t count) {
  return law::PenaltyBits(parameters.frequency_penalty, parameters.presence_penalty, count);
}

uint32_t BiasBits(float bias) { return law::CanonicalBits(bias); }

float Logprob(const kernels::Distribution& distribution, uint32_t token_bits, double temperature) {
  return law::Logprob(distribution, token_bits, temperature);
}

}  // namespace sortition
