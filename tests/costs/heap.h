// Counts the memory that the thread of the measured stream takes from operator new in this program.
#pragma once

#include <cstdint>

namespace sortition::costs {

// Counts what the calling thread allocates from here on, and only that. Other threads may free it.
void CountHeapOfThisThread();
// Returns the bytes that are not freed.
int64_t HeapHeld();
// Returns the most bytes that were held since ResetHeapPeak.
int64_t HeapPeak();
void ResetHeapPeak();

}  // namespace sortition::costs
