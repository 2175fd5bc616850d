// The sampling law for GLSL 4.50 shaders: the text of kernels/law/functions over pairs of 32-bit integers. No 64-bit
// integers, no floating point, no extension but GL_GOOGLE_include_directive, which the including shader requires. With
// LAW_INT64 defined, over the 64-bit integers of a device that has them. An includer that defines LAW_LOOK_UP has the
// tables itself.
#ifdef LAW_INT64
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#define u64 uint64_t
#define i64 int64_t
#endif
#define u32 uint
#define i32 int

u32 MulHigh(u32 a, u32 b) {
  u32 high;
  u32 low;
  umulExtended(a, b, high, low);
  return high;
}
i32 MulHighSigned(i32 a, i32 b) {
  i32 high;
  i32 low;
  imulExtended(a, b, high, low);
  return high;
}
u32 LeadingZeros(u32 x) { return u32(31 - findMSB(x)); }

#define LAW_FUNCTION
#define LAW_CONSTANT const
#define LAW_TABLE(name) const u32 name[32] = u32[32](
#define LAW_END_TABLE );
#ifndef LAW_LOOK_UP
#define LAW_LOOK_UP(name, index) name[index]
#endif

#ifdef LAW_INT64
#include "kernels/law/functions/u64_native.inc"
#else
#include "kernels/law/functions/u64_pair.inc"
#endif
#include "kernels/law/functions/law.inc"
