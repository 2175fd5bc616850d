// Runs kernels of a decoded module: warps of 32 lanes, blocks that share memory, and a seeded scheduler.
//
// Lanes of a warp that stand at one instruction, called from the same places, are a split and run in lock step. After a
// branch that splits a warp, the split that is deepest in calls and lowest in the code runs first, and splits merge
// when they reach the same instruction. That needs no analysis of the control flow, and it is one of the orders that
// independent thread scheduling allows: at an instruction where lanes meet, a split waits for all lanes of the member
// mask. Schedules may also let another split run ahead, as a GPU may.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/cuda/emulated_kernels.h"
#include "tests/ptx/program.h"
#include "tests/ptx/shadow.h"

namespace sortition::testing::ptx {

struct LaunchOptions {
  uint32_t blocks_x = 1;
  uint32_t blocks_y = 1;
  uint32_t threads = 32;                   // of a block: a multiple of 32
  uint64_t seed = 0;                       // of the schedule
  uint64_t max_steps = uint64_t{1} << 36;  // a launch with more instructions of warps counts as endless
};

// Costs of an instruction.
struct Count {
  uint64_t warps = 0;          // issues by a warp
  uint64_t lanes = 0;          // lanes that took part
  uint64_t sectors = 0;        // of 32 bytes of global memory
  uint64_t table_sectors = 0;  // of these, the sectors of the module's variables
  uint64_t conflicts = 0;      // passes over shared memory beyond the first
};

// Not thread-safe. Launches use the host's memory, and every thread sees each write at once.
class Machine {
 public:
  // The program outlives the machine.
  explicit Machine(const Program& program);
  ~Machine();

  // Runs the entry on `parameters`, its only parameter. `memory` lists the ranges that it may touch; null: unchecked.
  // Returns false if the launch ended early; reports tell why.
  bool Launch(std::string_view entry, std::span<const std::byte> parameters, const LaunchOptions& options,
              std::vector<MemoryRange>* memory);

  // Findings in the order of the run, at most one of a kind for each instruction.
  const std::vector<Report>& reports() const { return reports_; }
  void ClearReports() { reports_.clear(); }
  // Starts to count sectors and conflicts.
  void CountTransactions() { counts_transactions_ = true; }
  // By instruction, of all launches.
  const std::vector<Count>& counts() const { return counts_; }
  uint64_t steps() const { return steps_; }
  // Starts to time blocks by the model of cycles.h.
  void TimeBlocks() { times_blocks_ = true; }
  // Cycles from each block's start to its end, of all launches.
  const std::vector<uint64_t>& block_cycles() const { return block_cycles_; }

 private:
  static constexpr uint32_t kMostCalls = 16;
  struct Split {
    uint32_t pc = 0;
    uint32_t mask = 0;
    uint32_t depth = 0;
    bool is_waiting = false;
    bool is_at_barrier = false;
    std::array<uint32_t, kMostCalls> returns = {};
  };
  struct Block;
  struct Warp {
    explicit Warp(const Program& program);
    Registers registers;
    std::vector<std::byte> local;
    std::vector<uint8_t> local_written;
    std::vector<std::byte> parameters;
    std::vector<Split> splits;
    uint32_t live = 0;
    uint32_t index = 0;  // in its block
    Block* block = nullptr;
    uint64_t clock = 0;           // cycle of the next issue
    std::vector<uint64_t> ready;  // by place of a row / 4: cycle in which its value can be read
  };
  struct Block {
    uint32_t id = 0, x = 0, y = 0;
    uint32_t live = 0;  // lanes
    uint32_t at_barrier = 0;
    std::vector<std::byte> shared;
    BlockShadow shadow;
    std::vector<std::unique_ptr<Warp>> warps;
  };
  struct LaunchEnds {};  // thrown

  // machine.cc
  std::unique_ptr<Block> StartBlock(uint32_t id);
  void Schedule();
  bool IsRunnable(const Warp& warp) const;
  void RunWarp(Warp* warp, uint64_t steps, bool drifts);
  size_t Choose(const Warp& warp, bool drifts);
  size_t Merge(Warp* warp, size_t current);
  size_t MergeAndSwitch(Warp* warp, size_t current, bool drifts);
  void Time(Warp* warp, const Instruction& instruction, uint32_t mask) const;
  uint32_t LatencyOf(const Warp& warp, const Instruction& instruction, uint32_t mask) const;
  void Step(Warp* warp, size_t current, const Instruction& instruction, uint32_t mask);
  void Branch(Warp* warp, size_t current, const Instruction& instruction, uint32_t mask);
  void Call(Split* split, const Instruction& instruction);
  void Return(Warp* warp, size_t current, uint32_t mask);
  void Meet(Warp* warp, size_t current, const Instruction& instruction);
  void ArriveAtBarrier(Warp* warp, size_t current);
  void ReleaseBarrier(Block* block);
  void Complain(const Warp& warp, uint32_t lane, uint32_t pc, Finding finding, uint64_t address, std::string detail);

  // machine_memory.cc
  void Access(Warp* warp, uint32_t pc, const Instruction& instruction, uint32_t mask);
  std::byte* PlaceOf(Warp* warp, uint32_t lane, uint32_t pc, const Instruction& instruction, uint64_t address);
  std::byte* PlaceInGlobal(Warp* warp, uint32_t lane, uint32_t pc, const Instruction& instruction, uint64_t address);
  void CountAccess(uint32_t pc, const Instruction& instruction, uint32_t mask, const uint64_t* addresses);

  const Program& program_;
  const Function* entry_ = nullptr;
  std::span<const std::byte> parameters_;
  LaunchOptions options_;
  std::vector<MemoryRange>* memory_ = nullptr;
  GlobalShadow global_shadow_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Block>> spare_;  // ended blocks, used again
  std::vector<std::unique_ptr<Block>> resident_;
  std::vector<Report> reports_;
  std::vector<bool> is_reported_;  // by instruction and finding
  std::vector<Count> counts_;
  bool counts_transactions_ = false;
  bool times_blocks_ = false;
  std::vector<uint64_t> block_cycles_;
  uint64_t steps_ = 0;
  uint64_t last_step_ = 0;
};

}  // namespace sortition::testing::ptx
