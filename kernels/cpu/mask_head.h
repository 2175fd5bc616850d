// Masking of a row's first tokens, for filters that drop those: what is left is a row like any other.
#pragma once

#include "kernels/cpu/candidate.h"
#include "kernels/cpu/row_view.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd/kernels.h"

namespace sortition::kernels::cpu {

// Masks in `*row` every token before `first`, which is live. `*row` is the changed row; what it refers to then lies in
// `scratch` alone, but for the logits. O(vocabulary / 64) and the groups of the masked tokens.
void MaskHead(const Kernels& kernels, Candidate first, Scratch* scratch, Row* row);

}  // namespace sortition::kernels::cpu
