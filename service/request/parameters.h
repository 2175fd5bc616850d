// SamplingParameters, validated and compiled to what kernels and sequences use.
#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "service/limits.h"
#include "service/refusal.h"
#include "service/sequence/sequence_spec.h"
#include "sortition/v1/parameters.pb.h"

namespace sortition::service {

// Fills the fields of `*spec` that parameters decide; spec->live_vocabulary is set. Every parameter is honoured or
// refused by name.
std::optional<Refusal> CompileParameters(const v1::SamplingParameters& parameters, const Limits& limits,
                                         absl::string_view path, SequenceSpec* spec);

}  // namespace sortition::service
