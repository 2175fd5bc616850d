// Differences between nvcc and host compilers, which build these kernels for tests, and helpers that all kernels share.
//
// The host's form brings the CUDA built-ins that are used here, under the same names, and defines KERNEL_SHARED.
#pragma once

#include "kernels/cuda/layout.h"
#include "kernels/law/law.cuh"

// Declares `name`, whose type has no constructors, in a block's shared memory.
#ifndef KERNEL_SHARED
#define KERNEL_SHARED(type, name) __shared__ type name
#endif

namespace sortition::kernels::cuda {

using namespace law::device;  // the law's text
using u16 = uint16_t;

constexpr u32 kWarps = kThreads / 32;
constexpr u32 kAllLanes = 0xffffffffu;
constexpr u32 kNone = 0xffffffffu;

// f16 bits as f32 bits; NaN stays NaN.
__device__ inline u32 WidenHalf(u32 half) {
#ifdef __CUDACC__
  float number;
  asm("cvt.f32.f16 %0, %1;" : "=f"(number) : "h"(u16(half)));
  return __float_as_uint(number);
#else
  return WidenF16(half);
#endif
}

__device__ inline u32 Thread() { return threadIdx.x; }
__device__ inline u32 Lane() { return threadIdx.x % 32; }
__device__ inline u32 Warp() { return threadIdx.x / 32; }

}  // namespace sortition::kernels::cuda
