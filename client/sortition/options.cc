// Checks and compiles options.
#include "kernels/law/options.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/sortition/convert.h"
#include "client/sortition/sampler.h"
#include "kernels/law/chain.h"
#include "kernels/law/logprob.h"

namespace sortition {
namespace {

// Checks `order`. All options are in range.
Status CheckOrder(const law::SamplingParameters& p) {
  if (p.order.empty()) return {};
  bool listed[law::kSamplers] = {};
  bool is_ended = false;
  for (const law::Sampler sampler : p.order) {
    if (uint32_t(sampler) >= law::kSamplers) return InvalidArgument("order: a sampler that there is not");
    const std::string name(law::SamplerName(sampler));
    if (std::exchange(listed[size_t(sampler)], true)) return InvalidArgument(absl::StrCat("order: ", name, " twice"));
    if (!law::IsOn(p, sampler)) continue;
    if (is_ended) return InvalidArgument(absl::StrCat("order: ", name, " after a sampler that must be last"));
    is_ended = sampler == law::Sampler::kMirostat || sampler == law::Sampler::kAdaptiveP;
  }
  for (uint32_t i = 0; i < law::kSamplers; ++i) {
    const auto sampler = static_cast<law::Sampler>(i);
    if (listed[i] || !law::IsOn(p, sampler)) continue;
    return InvalidArgument(absl::StrCat("order lacks ", std::string(law::SamplerName(sampler)), ", which is on"));
  }
  return {};
}

Status CheckParameters(const law::SamplingParameters& p) {
  if (const auto found = law::FindOutOfRange(p)) {
    return InvalidArgument(absl::StrCat(std::string(found->name), " is ", found->value, ", not in ", found->limit));
  }
  if (p.mirostat != 0 && p.adaptive_p) return InvalidArgument("mirostat and adaptive_p exclude each other");
  return CheckOrder(p);
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
  if (std::max(options.raw_top, options.processed_top) > kernels::kMaxTopLogprobs) {
    return InvalidArgument(absl::StrCat("raw_top or processed_top is above ", kernels::kMaxTopLogprobs));
  }
  if ((options.raw_top != 0 && !options.raw_logprob) || (options.processed_top != 0 && !options.processed_logprob)) {
    return InvalidArgument("raw_top needs raw_logprob, processed_top processed_logprob");
  }
  *compiled = kernels::RowParameters();
  law::Compile(options.parameters, compiled);
  compiled->mask_nan = options.mask_nan;
  compiled->raw_logprob = options.raw_logprob;
  compiled->processed_logprob = options.processed_logprob;
  compiled->raw_top = options.raw_top;
  compiled->processed_top = options.processed_top;
  compiled->entropy = options.entropy;
  compiled->kept_count = options.kept_count;
  compiled->kept_tokens = options.kept_tokens;
  return {};
}

uint32_t PenaltyBits(const law::SamplingParameters& parameters, uint32_t count) {
  return law::PenaltyBits(parameters.frequency_penalty, parameters.presence_penalty, count);
}

uint32_t BiasBits(float bias) { return law::CanonicalBits(bias); }

double ProcessedTemperature(const kernels::RowParameters& parameters, const kernels::RowOutput& answer) {
  return law::ProcessedTemperature(parameters, answer);
}

float Logprob(const kernels::Distribution& distribution, uint32_t token_bits, double temperature) {
  return law::Logprob(distribution, token_bits, temperature);
}

}  // namespace sortition
