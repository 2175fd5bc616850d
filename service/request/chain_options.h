// Validates the samplers of the chain and their order.
#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "kernels/law/parameters.h"
#include "service/refusal.h"
#include "sortition/v1/parameters.pb.h"

namespace sortition::service {

// Sets the members of `*law` from typical_p on; the caller has set those before. Then checks all members: an option
// that is out of range, unknown, or contradicts another one is refused, by its field path below `path`. Thread-safe.
std::optional<Refusal> TakeChainOptions(const v1::SamplingParameters& parameters, absl::string_view path,
                                        law::SamplingParameters* law);

}  // namespace sortition::service
