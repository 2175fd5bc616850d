// A row's scale of distances, with what follows from it, and the way back from distances to keys.
#pragma once

#include <cstdint>

#include "kernels/law/law.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

struct RowScale {
  law::Scale scale;
  float to_fixed_point;         // law::FixedPoint(x) = truncate(x * to_fixed_point); a power of two
  uint32_t first_live_key;      // keys below it are dead
  uint32_t first_weighted_key;  // keys below it have weight 0
  float logits_per_unit;        // of distance, rounded up
  float slack;                  // logits: more than all roundings on the way from distances to logits add up to
};

// `max_key`: the row's largest key, not 0.
RowScale ScaleOf(const RowParameters& parameters, uint32_t max_key);

// `logit` less `distance`, or a little less than that: a token with a smaller logit, as it was sent, is further than
// `distance` from a token whose logit is `logit`. To leave out what cannot matter, never to decide.
inline float LogitBelow(float logit, float distance, const RowScale& scale) {
  return logit - (distance * scale.logits_per_unit + scale.slack);
}

// The smallest key whose distance is at most `bound`; bound < law::kDeadFromDistance. Some keys are no canonical
// logit's, and the one returned may be such.
uint32_t FirstKeyWithin(uint32_t bound, const law::Scale& scale);

}  // namespace sortition::kernels::cpu
