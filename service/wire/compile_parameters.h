// Validates SamplingParameters, and compiles them for kernels and sequences.
#pragma once

#include <cstdint>
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

// Returns the price of CompileParameters (service/text/cost.h), which is one piece of work. Thread-safe.
uint64_t CompileCost(const v1::SamplingParameters& parameters);
// Refuses, as `path`.parameters, those of a cost beyond max_piece_work. Thread-safe.
std::optional<Refusal> CheckCompileCost(uint64_t cost, absl::string_view path);

}  // namespace sortition::service
