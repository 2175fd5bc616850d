// What logprobs need of a distribution: sum, rank and leading tokens. Runs only for rows that ask.
#pragma once

#include <cstdint>

#include "kernels/cpu/row_view.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/select.h"

namespace sortition::kernels::cpu {

// The distribution over the tokens that `cut` keeps, with its first `top` tokens; `chosen` is one of them. Sets `*kept`
// to their number. One pass over the groups that have a kept token.
Distribution Describe(const Row& row, const law::Scale& scale, const Cut& cut, const Candidate& chosen, uint32_t top,
                      Scratch* scratch, uint32_t* kept);

// The distribution of a greedy row: all on one token.
Distribution PointMass(const Candidate& chosen, uint32_t top);

}  // namespace sortition::kernels::cpu
