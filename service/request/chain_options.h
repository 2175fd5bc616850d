// The samplers of the chain and their order, validated.
#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "kernels/law/parameters.h"
#include "service/refusal.h"
#include "sortition/v1/parameters.pb.h"

namespace sortition::service {

// Sets the members of `*law` from typical_p on; the caller has set those before. Then refuses, by its field path below
// `path`, what is out of range in any member, unknown, or contradicts another option. Thread-safe.
std::optional<Refusal> TakeChainOptions(const v1::SamplingParameters& parameters, absl::string_view path,
                                        law::SamplingParameters* law);

}  // namespace sortition::service
