// The samplers of the chain and their order, validated.
#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "kernels/law/parameters.h"
#include "service/refusal.h"
#include "sortition/v1/parameters.pb.h"

namespace sortition::service {

// Fills the fields of `*law` from typical_p on; the ones before are set. What is out of range, unknown or contradicts
// another option is refused by its field path below `path`. Thread-safe.
std::optional<Refusal> TakeChainOptions(const v1::SamplingParameters& parameters, absl::string_view path,
                                        law::SamplingParameters* law);

}  // namespace sortition::service
