// Where a given token stands in the race of its row (LAW.md, "Place in the race").
#pragma once

#include <cstdint>
#include <span>

#include "kernels/law/law.h"
#include "kernels/row.h"

namespace sortition::law {

struct RacePlace {
  uint32_t rank = 0;  // 1 + tokens before it in the race; 0: not in the race
  // Q32 octaves: its race key less the smallest one. At least 0. 2^63 - 1 if it is not in the race.
  int64_t lag = INT64_MAX;
  bool operator==(const RacePlace&) const = default;
};

// `kept` are the kept tokens as answers show them, ids ascending, none of a row that adaptive-p reshapes; `scale` is
// ProcessedScale's. Both are pure and thread-safe and give the same. The first draws every token's noise; the second
// leaves out groups that are behind both the given token and the first.
RacePlace RacePlaceReference(std::span<const kernels::TokenBits> kept, const Scale& scale,
                             const kernels::NoiseKey& noise, uint32_t given);
RacePlace RacePlaceOf(std::span<const kernels::TokenBits> kept, const Scale& scale, const kernels::NoiseKey& noise,
                      uint32_t given);

// Returns the margin in nats: 0 for the token that would be drawn, +Inf for one that is not in the race.
float MarginOf(const RacePlace& place);

}  // namespace sortition::law
