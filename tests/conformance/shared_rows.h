// Rows that one process writes to a CUDA device's memory and another one has answered there.
#pragma once

#include <cstdint>

#include "devices/cuda/hardware.h"

namespace sortition {

// In the one: makes the memory and the rows, and has this program run with flags that let main call CheckSharedRows.
// Returns whether that has ended well; `*rows` are as many as were compared. Blocks, for minutes at most.
bool TestSharedRows(const devices::cuda::Hardware& hardware, uint64_t seed, uint64_t* rows);

// In the other: takes memory of the device in that place of the driver's order by its descriptor. False, and stderr
// says why, if the device does not take it or answers a row otherwise than the reference.
bool CheckSharedRows(int device, int descriptor, uint64_t seed);

}  // namespace sortition
