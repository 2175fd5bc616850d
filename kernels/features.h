// What a row needs of the kernels that sample it, beyond what every kernel has. A device says which features its
// kernels have; the router gives it no row that asks for another.
#pragma once

#include <cstdint>

#include "kernels/row.h"

namespace sortition::kernels {

// A bit for each; bit i of the first ones is StageKind i of a chain.
using Features = uint64_t;
inline constexpr Features kNoFeatures = 0;
inline constexpr Features kAllFeatures = ~Features{0};

constexpr Features FeatureOf(StageKind kind) { return Features{1} << uint32_t(kind); }
static_assert(kStageKinds <= 32);

// O(stages).
inline Features FeaturesOf(const RowRequest& request) {
  Features features = kNoFeatures;
  for (const Stage& stage : request.parameters->chain) features |= FeatureOf(stage.kind);
  return features;
}

}  // namespace sortition::kernels
