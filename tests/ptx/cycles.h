// Model of time: what an instruction costs on a multiprocessor of compute capability 9.0. PTX stands for machine code,
// so each figure is an estimate, and nothing is calibrated on a GPU.
//
// A multiprocessor has four schedulers. Each has a share of every pipe, and a pipe takes a warp for several cycles. A
// warp issues in order and waits for its operands. A block is timed as if it were alone: it waits for its barriers, its
// memory and itself, and not for other warps' use of a pipe.
#pragma once

#include <cstdint>
#include <string_view>

namespace sortition::testing::ptx {

enum class Pipe : uint8_t {
  kNone,      // moves and changes of type that the assembler removes
  kInteger,   // 64 results a cycle and multiprocessor
  kMultiply,  // products of integers, 64
  kFloat,     // 128
  kDouble,    // 64
  kSlow,      // conversions of numbers, counts of bits: 16
  kMemory,    // loads, stores, atomics, exchanges between lanes: 32
  kControl,   // branches, calls, barriers
};
inline constexpr int kPipes = 8;

struct Cost {
  Pipe pipe = Pipe::kNone;
  uint8_t cycles = 0;    // that a warp occupies the pipe of its scheduler
  uint16_t latency = 0;  // cycles until the result can be read
};

inline constexpr uint32_t kBarrierCycles = 20;
inline constexpr uint32_t kOnChipCycles = 35;  // latency of a load from shared memory or the first cache
inline constexpr uint32_t kSchedulers = 4;
inline constexpr double kMultiprocessorHertz = 1.98e9;

// Returns the cost of the instruction of this name, as PTX has it.
Cost CostOf(std::string_view name);

}  // namespace sortition::testing::ptx
