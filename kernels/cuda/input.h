// Rows as kernels take them, from rows as the contract has them.
#pragma once

#include <cstdint>

#include "kernels/cuda/layout.h"
#include "kernels/row.h"

namespace sortition::kernels::cuda {

// The kernels' form of a row's options and noise; its pointers and counts are left empty. `vocabulary`: live tokens.
RowInput InputOf(const RowParameters& parameters, const NoiseKey& noise, DType dtype, uint32_t vocabulary);

// Whether rows with these options need the second kernel. Such rows may come to need it or not; others never do.
bool NeedsWeights(const RowInput& input);

// How a launch splits the rows of a batch.
struct Geometry {
  uint32_t chunk_groups = 0;  // of 64 tokens, that a block reads
  uint32_t chunks = 0;        // blocks of the longest row
};

// `largest_groups` of the longest row; `multiprocessors` of the device, to be kept busy.
Geometry GeometryOf(uint32_t rows, uint32_t largest_groups, uint32_t multiprocessors);

// What the device's output says of a row; `raw_top` and `processed_top` are where its first tokens were put.
RowAnswer AnswerOf(const RowParameters& parameters, const RowOutput& output, const TopToken* raw_top,
                   const TopToken* processed_top);

}  // namespace sortition::kernels::cuda
