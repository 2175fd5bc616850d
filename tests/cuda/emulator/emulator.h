// Runs kernels on the host: every CUDA thread is a fiber, and a scheduler resumes them in an order drawn from a seed.
//
// It is stricter than a GPU. Shared memory begins as noise. It aborts with the place if threads of a block wait at
// different barriers or some of them have ended, if threads of a warp meet at different warp-wide functions, if a lane
// is not in its own mask or takes a value from a lane outside the mask, and if threads wait for ever. It does not model
// a GPU's memory: a store is seen by all at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>

namespace sortition::testing::emulator {

struct LaunchOptions {
  uint32_t blocks_x = 1;
  uint32_t blocks_y = 1;
  uint32_t threads = 32;  // a multiple of 32
  uint64_t seed = 0;
  uint32_t resident_blocks = 3;  // blocks that run at once, chosen at random
};

// Runs `kernel` in every thread of every block and returns when all have ended. One launch at a time in a process.
void Launch(const LaunchOptions& options, const std::function<void()>& kernel);

// The rest is for the substitutes of CUDA's built-ins, called from within a kernel.

struct Place {
  uint32_t thread;
  uint32_t block_x;
  uint32_t block_y;
};
const Place& Here();

// The memory that the block's threads share: the same for all calls, filled with noise before the first.
void* BlockMemory(size_t bytes);

void BlockBarrier(const std::source_location& where);

// Values that a lane brings to a warp-wide function and takes from it.
struct Lane {
  uint64_t value = 0;
  uint32_t source = 0;  // the lane with the wanted value; outside of the mask, only the lane itself
};
using WarpFunction = void (*)(Lane* lanes, uint32_t mask);
// Waits for all lanes of `mask`, then applies `function` to their values, once. Returns this lane's value.
uint64_t MeetWarp(uint32_t mask, Lane lane, WarpFunction function, const std::source_location& where);

// Lets other threads run, now and then: atomics are where orders differ.
void MaySwitch();

[[noreturn]] void Fail(const char* what, const std::source_location& where);

}  // namespace sortition::testing::emulator
