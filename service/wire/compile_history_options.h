// Validates and compiles the parameters that look at the history.
#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "service/limits.h"
#include "service/refusal.h"
#include "service/text/history_options.h"
#include "sortition/v1/parameters.pb.h"

namespace sortition::service {

// Returns the window of the penalties, 0 for all tokens. Absent: no penalty is on. Thread-safe.
std::optional<uint32_t> PenaltyWindow(const v1::SamplingParameters& parameters);

// Refuses, by its field path below `path`, an option that is out of range or contradicts another one. Thread-safe.
std::optional<Refusal> CheckHistoryOptions(const v1::SamplingParameters& parameters, const Limits& limits,
                                           absl::string_view path, uint32_t live_vocabulary);

// Returns the compiled options, whose ranges are not checked. Clients compute history hashes with it. Thread-safe.
HistoryOptions CompileHistoryOptions(const v1::SamplingParameters& parameters);

}  // namespace sortition::service
