// Top-p: the shortest prefix of the order that has a share of the weights.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/kept.h"
#include "kernels/cpu/row_scale.h"
#include "kernels/cpu/row_view.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd/kernels.h"

namespace sortition::kernels::cpu {

// `top_p` is RowParameters', and not 0.

// Of candidates: moves the kept ones to the front and returns them.
std::span<Candidate> TopPOfCandidates(const Kernels& kernels, uint32_t top_p, const RowScale& scale,
                                      std::span<Candidate> candidates, Scratch* scratch);

// Of a row's tokens of a key >= `floor`, of which there is one at least. A list lies in scratch->kept.
Kept TopPOfRow(const Kernels& kernels, uint32_t top_p, uint32_t floor, const Row& row, const RowScale& scale,
               Scratch* scratch);

}  // namespace sortition::kernels::cpu
