// Rows that libsortition samples in a CUDA device's memory.
#pragma once

#include <cstdint>

#include "devices/cuda/hardware.h"

namespace sortition {

// Whether a CudaSampler answers random rows as the reference does, launched on a stream and from what a launch before
// it has left; stderr says what is wrong. `*rows` are as many as were compared. Blocks, for seconds.
bool TestSampler(const devices::cuda::Hardware& hardware, uint64_t seed, uint64_t* rows);

}  // namespace sortition
