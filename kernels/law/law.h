// The sampling law for C++: the text of kernels/law/functions over native 64-bit integers. LAW.md explains it.
//
// Everything here is a pure function of its arguments, thread-safe, and the same on every machine.
#pragma once

#include <bit>
#include <cstdint>

namespace sortition::law {

using u32 = uint32_t;
using i32 = int32_t;
using u64 = uint64_t;
using i64 = int64_t;

inline u32 MulHigh(u32 a, u32 b) { return u32((u64(a) * b) >> 32); }
inline i32 MulHighSigned(i32 a, i32 b) { return i32((i64(a) * b) >> 32); }
inline u32 LeadingZeros(u32 x) { return u32(std::countl_zero(x)); }

#define LAW_FUNCTION inline
#define LAW_CONSTANT inline constexpr
// clang-format off
#define LAW_TABLE(name) inline constexpr u32 name[32] = {
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

}  // namespace sortition::law
