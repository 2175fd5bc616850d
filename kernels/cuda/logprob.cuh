// law::Logprob on the device: the only floating point of the kernels. IEEE double, each operation rounded once and
// never fused, so the bits are the host's.
#pragma once

#include "kernels/cuda/platform.cuh"

namespace sortition::kernels::cuda {

// 2^32 log2(x), exact at powers of two.
__device__ inline i64 Log2Clamped(u64 x) { return max(i64(Log2Raw(x)), i64(63 - LeadingZeros64(x)) << 32); }

__device__ inline double NumberOf(u32 bits) { return double(__uint_as_float(bits)); }

__device__ inline float Logprob(u32 bits, u32 max_bits, u64 weight_sum, double temperature) {
  const double log_sum = __dmul_rn(__ll2double_rn(Log2Clamped(weight_sum) - (i64{44} << 32)), 0x1.62e42fefa39efp-33);
  const double below = __ddiv_rn(__dsub_rn(NumberOf(bits), NumberOf(max_bits)), temperature);
  return __double2float_rn(__dsub_rn(below, log_sum));
}

}  // namespace sortition::kernels::cuda
