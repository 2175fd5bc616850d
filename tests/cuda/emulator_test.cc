// The emulator finds defects that a GPU would not notice, or that would hang it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <set>
#include <vector>

#include "tests/cuda/emulator/built_ins.h"

namespace sortition::testing::emulator::emulator_test {
namespace {

constexpr uint32_t kAll = 0xffffffffu;

TEST(Emulator, RunsEveryThreadOnce) {
  std::vector<int> runs(3 * 2 * 64);
  Launch({.blocks_x = 3, .blocks_y = 2, .threads = 64},
         [&] { ++runs[(blockIdx.y * 3 + blockIdx.x) * 64 + threadIdx.x]; });
  EXPECT_EQ(runs, std::vector<int>(runs.size(), 1));
}

TEST(Emulator, WarpFunctionsEqualCuda) {
  Launch({.threads = 64}, [] {
    const uint32_t lane = threadIdx.x % 32;
    EXPECT_EQ(__shfl_xor_sync(kAll, lane, 4), lane ^ 4);
    EXPECT_EQ(__shfl_up_sync(kAll, uint64_t{lane} << 40, 3), uint64_t{lane < 3 ? lane : lane - 3} << 40);
    EXPECT_EQ(__shfl_sync(kAll, threadIdx.x + 7, 5), threadIdx.x - lane + 12);
    EXPECT_EQ(__ballot_sync(kAll, lane % 2 == 0), 0x55555555u);
    EXPECT_EQ(__reduce_max_sync(kAll, lane * 3), 93u);
    EXPECT_EQ(__reduce_add_sync(kAll, lane), 496u);
    if (lane < 8) {
      EXPECT_EQ(__reduce_add_sync(0xffu, lane), 28u);
    }
  });
}

TEST(Emulator, ArithmeticEqualsCuda) {
  EXPECT_EQ(__vmaxs2(0x80017fffu, 0x00008000u), 0x00007fffu);
  EXPECT_EQ(__vmins2(0x80017fffu, 0x00008000u), 0x80018000u);
}

// A value that is taken from shared memory without a barrier is not always the one that was meant.
TEST(Emulator, OrdersDifferBySeed) {
  std::set<uint32_t> seen;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    uint32_t first = 0;
    Launch({.threads = 64, .seed = seed}, [&] {
      KERNEL_SHARED(uint32_t, winner);
      if (threadIdx.x == 0) winner = 0;
      __syncthreads();
      if (atomicAdd(&winner, 1u) == 0) first = threadIdx.x;
    });
    seen.insert(first);
  }
  EXPECT_GT(seen.size(), 5u);
}

TEST(Emulator, SharedMemoryStartsRandom) {
  std::set<uint32_t> seen;
  Launch({.blocks_x = 8, .threads = 32}, [&] {
    KERNEL_SHARED(uint32_t, word);
    seen.insert(word);
  });
  EXPECT_EQ(seen.size(), 8u);
}

// Returns the mapped bytes of this process, with or without memory behind them.
int64_t MappedBytes() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

// Neither the threads' stacks nor a sanitizer's data of each thread leak.
TEST(Emulator, LaunchesLeakNoMemory) {
  const auto launch = [] {
    Launch({.blocks_x = 3, .threads = 64}, [] {
      const uint32_t lane = threadIdx.x % 32;
      EXPECT_EQ(__ballot_sync(kAll, lane < 16), 0xffffu);
    });
  };
  launch();
  const int64_t before = MappedBytes();
  ASSERT_GT(before, 0);
  for (int i = 0; i < 10; ++i) launch();
  EXPECT_LT(MappedBytes() - before, 64 << 20);
}

using EmulatorDeathTest = ::testing::Test;

void MeetAtDifferentBarriers() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

TEST(EmulatorDeathTest, DifferentBarriers) {
  EXPECT_DEATH(Launch({.threads = 64}, &MeetAtDifferentBarriers), "different barriers");
}

TEST(EmulatorDeathTest, BarrierMissedByThreads) {
  EXPECT_DEATH(Launch({.threads = 64},
                      [] {
                        if (threadIdx.x != 3) __syncthreads();
                      }),
               "ended");
}

TEST(EmulatorDeathTest, LanesSyncAtDifferentPlaces) {
  EXPECT_DEATH(Launch({},
                      [] {
                        if (threadIdx.x < 16) {
                          __syncwarp();
                        } else {
                          __ballot_sync(kAll, true);
                        }
                      }),
               "different places");
}

TEST(EmulatorDeathTest, LaneNeverArrives) {
  EXPECT_DEATH(Launch({},
                      [] {
                        if (threadIdx.x != 3) __syncwarp();
                      }),
               "waits for ever");
}

TEST(EmulatorDeathTest, WrongWarpMasks) {
  EXPECT_DEATH(Launch({}, [] { __syncwarp(0xffu); }), "not in its own mask");
  EXPECT_DEATH(Launch({},
                      [] {
                        if (threadIdx.x < 8) __shfl_xor_sync(0xffu, 1u, 8);
                      }),
               "not in the mask");
}

TEST(EmulatorDeathTest, UnalignedLoad) {
  const std::vector<uint4> memory(2);
  EXPECT_DEATH(
      Launch({}, [&] { __ldg(reinterpret_cast<const uint4*>(reinterpret_cast<uintptr_t>(memory.data()) + 4)); }),
      "not aligned");
}

}  // namespace
}  // namespace sortition::testing::emulator::emulator_test
