// Bounds of single sampling parameters, found by the names of their fields.
#pragma once

#include <google/protobuf/repeated_field.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "service/refusal.h"
#include "sortition/v1/policies.pb.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// Returns why a limit can never be applied: it names no such field, it has no bound, or its bounds contradict each
// other.
absl::Status CheckLimit(const v1::ParameterLimit& limit);

// Sets a number to a value that fits its type.
void SetField(const std::string& field, double value, v1::SamplingParameters* parameters);

// Returns true if the parameters set a value beyond the limit. Law's defaults of absent fields do not count. `limit` is
// one that CheckLimit accepts, here and below.
bool SetsBeyond(const v1::ParameterLimit& limit, const v1::SamplingParameters& parameters);

// Refuses parameters at `path` whose value in force is beyond the limit, or moves the value and says so in `*effect`.
std::optional<Refusal> ApplyLimit(const v1::ParameterLimit& limit, absl::string_view path,
                                  v1::SamplingParameters* parameters, v1::PolicyEffect* effect);

using ParameterLimits = google::protobuf::RepeatedPtrField<v1::ParameterLimit>;

// Called after ApplyLimit for each of `limits`. Does the same for fields that bypass a limit: dynamic_temperature.range
// bypasses temperature's, min_keep a filter's (rules: ParameterLimit).
std::optional<Refusal> ApplyImplied(const ParameterLimits& limits, absl::string_view path,
                                    v1::SamplingParameters* parameters, v1::PolicyEffect* effect);

}  // namespace sortition::service
