// What logprobs need of a distribution: sum, rank and leading tokens. Runs only for rows that ask.
#pragma once

#include <cstdint>

#include "kernels/cpu/kept.h"
#include "kernels/cpu/row_scale.h"
#include "kernels/cpu/row_view.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

// Fills `*distribution` with the distribution over the kept tokens, with its first `top` tokens; `chosen` is one of
// them.
void Describe(const Kernels& kernels, const Row& row, const RowScale& scale, const Kept& kept, Candidate chosen,
              uint32_t top, Scratch* scratch, Distribution* distribution);

// The distribution of a greedy row: all on one token.
void DescribePointMass(Candidate chosen, uint32_t top, Distribution* distribution);

}  // namespace sortition::kernels::cpu
