// The draw: the law's grouped race, run only where it can still be won.
#pragma once

#include "kernels/cpu/kept.h"
#include "kernels/cpu/row_scale.h"
#include "kernels/cpu/row_view.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/law/law.h"

namespace sortition::kernels::cpu {

// The kept token of the smallest race key. `row` has a live token. Two random words per token of a list; otherwise one
// per group, and a few groups read, whatever the row's shape.
uint32_t Draw(const Kernels& kernels, const Row& row, const RowScale& scale, const Kept& kept, const law::DrawKey& key,
              Scratch* scratch);

}  // namespace sortition::kernels::cpu
