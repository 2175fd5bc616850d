// Sums and numbers over a prefix of a row's order.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/row_view.h"
#include "kernels/cpu/scale.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd/kernels.h"

namespace sortition::kernels::cpu {

// Returns the sum of the weights of listed tokens.
uint64_t WeighList(const Kernels& kernels, std::span<const Candidate> list, const RowScale& scale, Scratch* scratch);

// Returns the sum of the weights of the tokens that are not after `last`. Reads the groups that have one.
uint64_t SumOfWeights(const Kernels& kernels, const RowView& row, Candidate last, const RowScale& scale,
                      Scratch* scratch);

// Returns the sum of the weights of the kept tokens.
uint64_t WeighKept(const Kernels& kernels, const RowView& row, const RowScale& scale, const Kept& kept,
                   Scratch* scratch);

// Sums the weights of the tokens with a key >= `floor`, and apart those with a key >= `high`. 1 <= floor <= high.
struct SplitSum {
  uint64_t all;
  uint64_t above;
};
SplitSum SplitSumOfWeights(const Kernels& kernels, const RowView& row, uint32_t floor, uint32_t high,
                           const RowScale& scale, Scratch* scratch);

// Returns the number of tokens that are not after `last`. Reads the groups that have one.
uint32_t NumberOfTokens(const Kernels& kernels, const RowView& row, Candidate last, Scratch* scratch);

}  // namespace sortition::kernels::cpu
