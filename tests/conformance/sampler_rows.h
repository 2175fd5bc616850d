// Rows that libsortition samples in a CUDA device's memory.
#pragma once

#include <cstdint>

#include "devices/cuda/hardware.h"

namespace sortition {

// True if a CudaSampler answers random rows as the reference does, launched on a stream and from the state of a launch
// before; errors are written to stderr. `*rows` is set to the number of rows compared. Blocks for seconds.
bool TestSampler(const devices::cuda::Hardware& hardware, uint64_t seed, uint64_t* rows);

}  // namespace sortition
