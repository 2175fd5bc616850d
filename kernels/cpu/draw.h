// The draw: the law's grouped race, run only where it can still be won.
#pragma once

#include "kernels/cpu/row_view.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/select.h"

namespace sortition::kernels::cpu {

// The token of the smallest race key among those that `cut` keeps. `row` has a live token. One random word per group
// that has a kept token, and a few groups read, whatever the row's shape.
Candidate Draw(const Row& row, const law::Scale& scale, const Cut& cut, const law::DrawKey& key, Scratch* scratch);

}  // namespace sortition::kernels::cpu
