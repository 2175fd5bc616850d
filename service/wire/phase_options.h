// Phases: their tags and budgets, and the parameters that hold within.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/law/compact.h"
#include "service/limits.h"
#include "service/refusal.h"
#include "service/text/phases.h"
#include "service/text/sequence_spec.h"
#include "sortition/v1/parameters.pb.h"

namespace sortition::service {

// Refuses, by its field path below `path`, a phase that contradicts another one or itself, or is out of range. Does not
// look at the parameters within. Thread-safe.
std::optional<Refusal> CheckPhases(const v1::SamplingParameters& parameters, const Limits& limits,
                                   absl::string_view path, uint32_t live_vocabulary);

// Returns the tags and budgets, which are not checked. Of the options within it sets the penalties, which are part of
// history hashes. Thread-safe.
std::vector<Phase> CompilePhases(const v1::SamplingParameters& parameters);

// Returns the parameters that hold within `phase`: the sequence's, except for the fields that the phase sets. Leaves
// out lists of any length, and options with such: compiled ones are joined instead. Thread-safe.
v1::SamplingParameters ParametersWithin(const v1::SamplingParameters& parameters, const v1::Phase& phase);

// Returns true if the phase sets the option `name`. Thread-safe.
bool Replaces(const v1::Phase& phase, absl::string_view name);

// Refuses, as CheckPhases does, a phase whose own lists leave no token, once they are compiled. Thread-safe.
std::optional<Refusal> WhyNoToken(const v1::Phase& phase, const PhaseOptions& options, absl::string_view path,
                                  uint32_t live_vocabulary);

// Does the same for the lists of a sequence without phases. With phases these lists may never apply: a phase may begin
// at once, and each may follow another directly. Thread-safe.
std::optional<Refusal> WhyNoToken(const v1::SamplingParameters& parameters, const PhaseOptions& options,
                                  absl::string_view path, uint32_t live_vocabulary);

// Refuses, by its field path below `path`, an option that leaves the text or one of its phases a single token at every
// position with all logits: a watermark marks nothing there. Logits that are exactly equal do not count as a
// choice. Takes all of a vocabulary with one token. `spec` has the compiled parameters. Thread-safe.
std::optional<Refusal> WhyNoMark(const v1::SamplingParameters& parameters, const SequenceSpec& spec,
                                 absl::string_view path);

// Returns the temperature at which CompactRow.sum is meant, however the options compile; absent if it is dynamic.
// Thread-safe.
std::optional<law::Temperature> SumTemperature(const PhaseOptions& options);

// Returns true if CompactRow.sum has one meaning in the whole text: there is a temperature, and each phase has the
// same. Thread-safe.
bool StatesOneSum(const SequenceSpec& spec);

}  // namespace sortition::service
