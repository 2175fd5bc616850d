// The parameters that look at the history, validated and compiled.
#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "service/limits.h"
#include "service/refusal.h"
#include "service/sequence/history_options.h"
#include "sortition/v1/parameters.pb.h"

namespace sortition::service {

// What of them is out of range or contradicts another, by field path below `path`. Thread-safe.
std::optional<Refusal> CheckHistoryOptions(const v1::SamplingParameters& parameters, const Limits& limits,
                                           absl::string_view path, uint32_t live_vocabulary);

// Their compiled form; ranges are not looked at. Clients use it for the history hash of their own. Thread-safe.
HistoryOptions CompileHistoryOptions(const v1::SamplingParameters& parameters);

}  // namespace sortition::service
