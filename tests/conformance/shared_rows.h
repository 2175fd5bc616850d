// Rows that one process writes to a CUDA device's memory and another one has answered there.
#pragma once

#include <cstdint>

#include "devices/cuda/hardware.h"

namespace sortition {

// Called in the first process: makes the memory and the rows, and runs this program with flags that let main call
// CheckSharedRows. Returns true if that process ended well; `*rows` is the number of compared rows. Blocks, for minutes
// at most.
bool TestSharedRows(const devices::cuda::Hardware& hardware, uint64_t seed, uint64_t* rows);

// In the other: takes memory of the device in that place of the driver's order by its descriptor. False, and stderr
// says why, if the device does not take it or answers a row otherwise than the reference.
bool CheckSharedRows(int device, int descriptor, uint64_t seed);

}  // namespace sortition
