// The options of the law: from the message to law::SamplingParameters, with their checks.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "kernels/law/parameters.h"
#include "service/refusal.h"
#include "sortition/v1/parameters.pb.h"

namespace sortition::service {

// Sets `*law`, which has its defaults. Refuses, by its field path below `path`, an option that is out of range, is
// unknown, or contradicts another one. Thread-safe.
std::optional<Refusal> TakeLawOptions(const v1::SamplingParameters& parameters, uint32_t live_vocabulary,
                                      absl::string_view path, law::SamplingParameters* law);

}  // namespace sortition::service
