// The CUDA kernels as a host compiler makes them from the same source, run by the emulator.
#pragma once

#include <cstdint>

#include "kernels/cuda/layout.h"

namespace sortition::testing {

enum class CudaKernel { kRead, kWeigh, kChain };

// Runs the kernel over `rows` rows of `sections` sections; the view's pointers are the host's.
void RunEmulated(CudaKernel kernel, const kernels::cuda::BatchView& view, uint32_t rows, uint32_t sections,
                 uint64_t seed);

// Likewise, of so many rows.
void RunEmulatedMerge(const kernels::cuda::EditMerge* merges, uint32_t rows, uint64_t seed);

}  // namespace sortition::testing
