// The filters in their order: min-p, top-k, top-p.
#pragma once

#include "kernels/cpu/kept.h"
#include "kernels/cpu/row_scale.h"
#include "kernels/cpu/row_view.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

// What all the filters together keep; a list of it lies in scratch->kept. A filter that is off costs nothing; only
// top-p without top-k looks at the whole row.
Kept Filter(const Kernels& kernels, const RowRequest& request, const Row& row, const RowScale& scale, Scratch* scratch);

}  // namespace sortition::kernels::cpu
