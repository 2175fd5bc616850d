// The draw: the law's grouped race, run only where it can still be won.
#pragma once

#include "kernels/cpu/kept.h"
#include "kernels/cpu/row_scale.h"
#include "kernels/cpu/row_view.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/law/law.h"

namespace sortition::kernels::cpu {

// The kept token of the smallest race key. `adapted` changes the distances that `scale` gives as adaptive-p does; null
// where they stay. `row` has a live token. Two random words per token of a list; otherwise one
// per group, and a few groups read, whatever the row's shape.
uint32_t Draw(const Kernels& kernels, const Row& row, const RowScale& scale, const Kept& kept, const law::DrawKey& key,
              const law::Shape* adapted, Scratch* scratch);

// law::ShapedDistance from the distance that the shape's scale gives.
inline uint32_t AdaptedDistance(uint32_t t, const law::Shape& shape) {
  if (t == law::kDead) return t;
  return law::AdaptedDistance(law::Probability(law::Weight(t), shape.share), shape.target);
}

}  // namespace sortition::kernels::cpu
