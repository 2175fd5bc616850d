// Describes a distribution for logprobs: its sum, ranks and leading tokens. Runs only for rows that ask.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/candidate.h"
#include "kernels/cpu/row_view.h"
#include "kernels/cpu/scale.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

// Fills `*distribution` with the distribution over the kept tokens, with its first `top` tokens and the places of the
// requested ones. `chosen` and `requested` are any tokens with their keys in the row, 0 where masked.
void Describe(const Kernels& kernels, const RowView& row, const RowScale& scale, const Kept& kept, Candidate chosen,
              uint32_t top, std::span<const Candidate> requested, Scratch* scratch, Distribution* distribution);

// Fills in a greedy row's distribution: `first` has all the mass.
void DescribePointMass(Candidate first, Candidate chosen, uint32_t top, std::span<const Candidate> requested,
                       Distribution* distribution);

// Returns the number of kept tokens.
uint32_t CountKept(const Kernels& kernels, const RowView& row, const Kept& kept, Scratch* scratch);

// Lists the kept tokens by ascending id. O(kept log kept).
void ListKept(const Kernels& kernels, const RowView& row, const Kept& kept, Scratch* scratch,
              std::vector<TokenBits>* tokens);

EntropySums SumEntropy(const Kernels& kernels, const RowView& row, const RowScale& scale, const Kept& kept,
                       Scratch* scratch);

}  // namespace sortition::kernels::cpu
