// Validates SamplingParameters, and compiles them for kernels and sequences.
#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "service/limits.h"
#include "service/refusal.h"
#include "service/text/sequence_spec.h"
#include "sortition/v1/parameters.pb.h"

namespace sortition::service {

// Sets the members of `*spec` that parameters decide. spec->live_vocabulary has been set. Every parameter is honoured,
// or refused by its field path below `path`. Thread-safe.
std::optional<Refusal> CompileParameters(const v1::SamplingParameters& parameters, const Limits& limits,
                                         absl::string_view path, SequenceSpec* spec);

}  // namespace sortition::service
