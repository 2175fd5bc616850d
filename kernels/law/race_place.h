// Where a given token stands in the race of its row (LAW.md, "Place in the race").
#pragma once

#include <cstdint>
#include <span>

#include "kernels/law/law.h"
#include "kernels/law/reference_verify.h"
#include "kernels/row.h"

namespace sortition::law {

using kernels::RacePlace;

// `kept` are the kept tokens of a row without adaptive-p. Draws every token's noise. Pure and thread-safe.
RacePlace RacePlaceReference(std::span<const kernels::TokenBits> kept, const DistanceOf& distance,
                             const kernels::NoiseKey& noise, uint32_t given);

// Returns the same from the kept tokens as answers show them, ids ascending; `scale` is ProcessedScale's. Leaves out
// groups that are behind both the given token and the first. Pure and thread-safe.
RacePlace RacePlaceOf(std::span<const kernels::TokenBits> kept, const Scale& scale, const kernels::NoiseKey& noise,
                      uint32_t given);

// Returns the margin in nats: 0 for the token that would be drawn, +Inf for one that is not in the race.
float MarginOf(const RacePlace& place);

}  // namespace sortition::law
