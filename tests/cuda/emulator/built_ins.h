// CUDA's built-ins, as far as the kernels use them, for kernels that a host compiler compiles. Included before them.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <source_location>

#include "tests/cuda/emulator/emulator.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)

#define KERNEL_SHARED(type, name) \
  type& name = *static_cast<type*>(::sortition::testing::emulator::BlockMemory(sizeof(type)))

namespace sortition::testing::emulator {

template <uint32_t Place::*kMember>
struct Coordinate {
  operator uint32_t() const { return Here().*kMember; }
};

using Where = std::source_location;

// Applies `apply(lanes, mask, i)` to every lane of the mask, on all lanes' values.
template <uint64_t (*kApply)(const Lane*, uint32_t, uint32_t)>
void ForEachLane(Lane* lanes, uint32_t mask) {
  uint64_t results[32];
  for (uint32_t i = 0; i < 32; ++i) results[i] = (mask >> i & 1) != 0 ? kApply(lanes, mask, i) : 0;
  // Other lanes may not yet have taken the results of an earlier function.
  for (uint32_t i = 0; i < 32; ++i) {
    if ((mask >> i & 1) != 0) lanes[i].value = results[i];
  }
}

inline uint64_t ValueOfSource(const Lane* lanes, uint32_t, uint32_t lane) { return lanes[lanes[lane].source].value; }
inline uint64_t Votes(const Lane* lanes, uint32_t mask, uint32_t) {
  uint32_t votes = 0;
  for (uint32_t i = 0; i < 32; ++i) votes |= uint32_t((mask >> i & 1) != 0 && lanes[i].value != 0) << i;
  return votes;
}
inline uint64_t LargestOf32(const Lane* lanes, uint32_t mask, uint32_t) {
  uint32_t largest = 0;
  for (uint32_t i = 0; i < 32; ++i) largest = std::max(largest, (mask >> i & 1) != 0 ? uint32_t(lanes[i].value) : 0u);
  return largest;
}
inline uint64_t SumOf32(const Lane* lanes, uint32_t mask, uint32_t) {
  uint32_t sum = 0;
  for (uint32_t i = 0; i < 32; ++i) sum += (mask >> i & 1) != 0 ? uint32_t(lanes[i].value) : 0u;
  return sum;
}

template <typename T>
T Shuffle(uint32_t mask, T value, uint32_t source, const Where& where) {
  return T(MeetWarp(mask, {uint64_t(value), source}, &ForEachLane<&ValueOfSource>, where));
}
inline uint32_t OwnLane() { return Here().thread % 32; }

}  // namespace sortition::testing::emulator

inline constexpr struct {
  ::sortition::testing::emulator::Coordinate<&::sortition::testing::emulator::Place::thread> x;
} threadIdx;
inline constexpr struct {
  ::sortition::testing::emulator::Coordinate<&::sortition::testing::emulator::Place::block_x> x;
  ::sortition::testing::emulator::Coordinate<&::sortition::testing::emulator::Place::block_y> y;
} blockIdx;

// --- synchronisation

#define SORTITION_HERE const ::std::source_location& where = ::std::source_location::current()

inline void __syncthreads(SORTITION_HERE) { ::sortition::testing::emulator::BlockBarrier(where); }
inline void __syncwarp(uint32_t mask = 0xffffffffu, SORTITION_HERE) {
  using namespace ::sortition::testing::emulator;
  MeetWarp(mask, {0, OwnLane()}, &ForEachLane<&ValueOfSource>, where);
}
inline void __threadfence() { ::sortition::testing::emulator::MaySwitch(); }

template <typename T>
T __shfl_sync(uint32_t mask, T value, uint32_t lane, SORTITION_HERE) {
  return ::sortition::testing::emulator::Shuffle(mask, value, lane % 32, where);
}
template <typename T>
T __shfl_xor_sync(uint32_t mask, T value, uint32_t distance, SORTITION_HERE) {
  using namespace ::sortition::testing::emulator;
  return Shuffle(mask, value, OwnLane() ^ distance, where);
}
template <typename T>
T __shfl_up_sync(uint32_t mask, T value, uint32_t distance, SORTITION_HERE) {
  using namespace ::sortition::testing::emulator;
  return Shuffle(mask, value, OwnLane() < distance ? OwnLane() : OwnLane() - distance, where);
}
inline uint32_t __ballot_sync(uint32_t mask, bool vote, SORTITION_HERE) {
  using namespace ::sortition::testing::emulator;
  return uint32_t(MeetWarp(mask, {vote, OwnLane()}, &ForEachLane<&Votes>, where));
}
inline uint32_t __reduce_max_sync(uint32_t mask, uint32_t value, SORTITION_HERE) {
  using namespace ::sortition::testing::emulator;
  return uint32_t(MeetWarp(mask, {value, OwnLane()}, &ForEachLane<&LargestOf32>, where));
}
inline uint32_t __reduce_add_sync(uint32_t mask, uint32_t value, SORTITION_HERE) {
  using namespace ::sortition::testing::emulator;
  return uint32_t(MeetWarp(mask, {value, OwnLane()}, &ForEachLane<&SumOf32>, where));
}

#undef SORTITION_HERE

// --- atomics: a launch runs on one thread of the host

template <typename T, typename U>
T atomicAdd(T* at, U value) {
  ::sortition::testing::emulator::MaySwitch();
  const T before = *at;
  *at = T(before + value);
  return before;
}
inline uint32_t atomicMax(uint32_t* at, uint32_t value) {
  ::sortition::testing::emulator::MaySwitch();
  const uint32_t before = *at;
  *at = std::max(before, value);
  return before;
}
inline uint32_t atomicAnd(uint32_t* at, uint32_t value) {
  ::sortition::testing::emulator::MaySwitch();
  const uint32_t before = *at;
  *at = before & value;
  return before;
}

// --- memory and arithmetic

struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
template <typename T>
T __ldg(const T* at) {
  if (reinterpret_cast<uintptr_t>(at) % alignof(T) != 0) {
    ::sortition::testing::emulator::Fail("a load that is not aligned", std::source_location::current());
  }
  return *at;
}

using std::max;
using std::min;

inline int __popc(uint32_t x) { return std::popcount(x); }
inline int __ffs(int32_t x) { return x == 0 ? 0 : std::countr_zero(uint32_t(x)) + 1; }
inline int __clz(int32_t x) { return std::countl_zero(uint32_t(x)); }
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return uint32_t((uint64_t{a} * b) >> 32); }
inline int32_t __mulhi(int32_t a, int32_t b) { return int32_t((int64_t{a} * b) >> 32); }

inline uint32_t __vmaxs2(uint32_t a, uint32_t b) {
  const auto low = uint16_t(std::max(int16_t(a), int16_t(b)));
  const auto high = uint16_t(std::max(int16_t(a >> 16), int16_t(b >> 16)));
  return uint32_t{high} << 16 | low;
}
inline uint32_t __vmins2(uint32_t a, uint32_t b) {
  const auto low = uint16_t(std::min(int16_t(a), int16_t(b)));
  const auto high = uint16_t(std::min(int16_t(a >> 16), int16_t(b >> 16)));
  return uint32_t{high} << 16 | low;
}

inline float __uint_as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
// Saturates; NaN becomes 0.
inline int32_t __float2int_rz(float x) {
  if (!(x > -0x1p31f)) return x != x ? 0 : INT32_MIN;
  return x < 0x1p31f ? int32_t(x) : INT32_MAX;
}
inline double __ll2double_rn(long long x) { return double(x); }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline float __double2float_rn(double x) { return float(x); }
