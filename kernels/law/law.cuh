// The sampling law for CUDA device code: the text of kernels/law/functions over native 64-bit integers. Host code of a
// .cu file includes law.h beside it; the names here live in their own namespace.
#pragma once

#include <cstdint>

namespace sortition::law::device {

using u32 = uint32_t;
using i32 = int32_t;
using u64 = uint64_t;
using i64 = int64_t;

__device__ __forceinline__ u32 MulHigh(u32 a, u32 b) { return __umulhi(a, b); }
__device__ __forceinline__ i32 MulHighSigned(i32 a, i32 b) { return __mulhi(a, b); }
__device__ __forceinline__ u32 LeadingZeros(u32 x) { return u32(__clz(i32(x))); }

#define LAW_FUNCTION __device__ __forceinline__
#define LAW_CONSTANT constexpr
// clang-format off
#define LAW_TABLE(name) static __device__ const u32 name[32] = {
#define LAW_END_TABLE };
// clang-format on
#define LAW_LOOK_UP(name, index) name[index]

#include "kernels/law/functions/u64_native.inc"
// The text stands on that arithmetic.
#include "kernels/law/functions/law.inc"

#undef LAW_FUNCTION
#undef LAW_CONSTANT
#undef LAW_TABLE
#undef LAW_END_TABLE
#undef LAW_LOOK_UP

}  // namespace sortition::law::device
