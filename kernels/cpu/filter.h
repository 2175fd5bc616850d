// The filters in their order: min-p, top-k, top-p.
#pragma once

#include "kernels/cpu/row_view.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/select.h"

namespace sortition::kernels::cpu {

// What all the filters together keep. A filter that is off costs nothing; only top-p without top-k looks at the whole
// row.
Cut Filter(const Row& row, const law::Scale& scale, Scratch* scratch);

}  // namespace sortition::kernels::cpu
