// Arithmetic as PTX defines it, over the lanes of a warp.
#include "tests/ptx/operations.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

namespace sortition::testing::ptx {
namespace {

using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using s16 = int16_t;
using s32 = int32_t;
using s64 = int64_t;
using f32 = float;
using f64 = double;

// Stores `compute(lane)` for each lane of the mask. A full mask takes a loop that compilers vectorise.
template <typename D, typename F>
inline void ForLanes(D* to, u32 mask, const F& compute) {
  if (mask == kAllLanes) {
    for (u32 lane = 0; lane < kLanes; ++lane) to[lane] = D(compute(lane));
    return;
  }
  for (u32 rest = mask; rest != 0; rest &= rest - 1) {
    const auto lane = u32(std::countr_zero(rest));
    to[lane] = D(compute(lane));
  }
}

template <typename D, typename A, D (*kCompute)(A)>
void Unary(const Registers& at, const Instruction& i, u32 mask) {
  const A* const a = at.row<A>(i.operands[1]);
  ForLanes(at.row<D>(i.operands[0]), mask, [&](u32 lane) { return kCompute(a[lane]); });
}

template <typename D, typename A, typename B, D (*kCompute)(A, B)>
void Binary(const Registers& at, const Instruction& i, u32 mask) {
  const A* const a = at.row<A>(i.operands[1]);
  const B* const b = at.row<B>(i.operands[2]);
  ForLanes(at.row<D>(i.operands[0]), mask, [&](u32 lane) { return kCompute(a[lane], b[lane]); });
}

template <typename T, T (*kCompute)(T, T, T)>
void Ternary(const Registers& at, const Instruction& i, u32 mask) {
  const T* const a = at.row<T>(i.operands[1]);
  const T* const b = at.row<T>(i.operands[2]);
  const T* const c = at.row<T>(i.operands[3]);
  ForLanes(at.row<T>(i.operands[0]), mask, [&](u32 lane) { return kCompute(a[lane], b[lane], c[lane]); });
}

inline void SetBits(u32* to, u32 mask, u32 bits) { *to = (*to & ~mask) | (bits & mask); }

template <typename T, bool (*kCompare)(T, T)>
void Compare(const Registers& at, const Instruction& i, u32 mask) {
  const T* const a = at.row<T>(i.operands[1]);
  const T* const b = at.row<T>(i.operands[2]);
  u32 bits = 0;
  for (u32 lane = 0; lane < kLanes; ++lane) bits |= u32(kCompare(a[lane], b[lane])) << lane;
  SetBits(at.row<u32>(i.operands[0]), mask, bits);
}

template <u32 (*kCompute)(u32, u32)>
void Predicates(const Registers& at, const Instruction& i, u32 mask) {
  SetBits(at.row<u32>(i.operands[0]), mask, kCompute(at.predicate(i.operands[1]), at.predicate(i.operands[2])));
}
void NotPredicate(const Registers& at, const Instruction& i, u32 mask) {
  SetBits(at.row<u32>(i.operands[0]), mask, ~at.predicate(i.operands[1]));
}
void MovePredicate(const Registers& at, const Instruction& i, u32 mask) {
  SetBits(at.row<u32>(i.operands[0]), mask, at.predicate(i.operands[1]));
}

template <typename T>
void Select(const Registers& at, const Instruction& i, u32 mask) {
  const T* const a = at.row<T>(i.operands[1]);
  const T* const b = at.row<T>(i.operands[2]);
  const u32 bits = at.predicate(i.operands[3]);
  ForLanes(at.row<T>(i.operands[0]), mask, [&](u32 lane) { return (bits >> lane & 1) != 0 ? a[lane] : b[lane]; });
}

// Splits a value into two halves, the lower one first.
template <typename Half, typename Whole>
void Unpack(const Registers& at, const Instruction& i, u32 mask) {
  Whole values[kLanes];
  std::memcpy(values, at.row<Whole>(i.operands[2]), sizeof(values));
  ForLanes(at.row<Half>(i.operands[0]), mask, [&](u32 lane) { return values[lane]; });
  ForLanes(at.row<Half>(i.operands[1]), mask, [&](u32 lane) { return values[lane] >> (8 * sizeof(Half)); });
}
template <typename Half, typename Whole>
void Pack(const Registers& at, const Instruction& i, u32 mask) {
  const Half* const low = at.row<Half>(i.operands[1]);
  const Half* const high = at.row<Half>(i.operands[2]);
  ForLanes(at.row<Whole>(i.operands[0]), mask,
           [&](u32 lane) { return Whole(Whole(low[lane]) | Whole(high[lane]) << (8 * sizeof(Half))); });
}

// --- values

template <typename T>
T Add(T a, T b) {
  return T(a + b);
}
template <typename T>
T Subtract(T a, T b) {
  return T(a - b);
}
template <typename T>
T Multiply(T a, T b) {
  return T(a * b);
}
template <typename T>
T MultiplyAdd(T a, T b, T c) {
  return T(a * b + c);
}
template <typename T, typename Wide>
T MultiplyHigh(T a, T b) {
  return T((Wide(a) * Wide(b)) >> (8 * sizeof(T)));
}
template <typename T, typename Wide>
Wide MultiplyWide(T a, T b) {
  return Wide(a) * Wide(b);
}
template <typename T>
T Divide(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return a / b;
  } else {
    return b == 0 ? T(~T{0}) : T(a / b);
  }
}
template <typename T>
T Min(T a, T b) {
  return std::min(a, b);
}
template <typename T>
T Max(T a, T b) {
  return std::max(a, b);
}
template <typename T>
T And(T a, T b) {
  return T(a & b);
}
template <typename T>
T Or(T a, T b) {
  return T(a | b);
}
template <typename T>
T Xor(T a, T b) {
  return T(a ^ b);
}
template <typename T>
T Not(T a) {
  return T(~a);
}
template <typename T>
T Negate(T a) {
  if constexpr (std::is_floating_point_v<T>) {
    return -a;
  } else {
    return T(T{0} - a);
  }
}
template <typename U, typename S>
U Absolute(U a) {
  return S(a) < 0 ? U(U{0} - a) : a;
}
f32 AbsoluteFloat(f32 a) { return std::fabs(a); }
template <typename T>
T Same(T a) {
  return a;
}
// Shifts by the width or more leave 0, or the sign.
template <typename T>
T ShiftLeft(T a, u32 by) {
  return by < 8 * sizeof(T) ? T(a << by) : T{0};
}
template <typename T>
T ShiftRight(T a, u32 by) {
  constexpr u32 kWidth = 8 * sizeof(T);
  if constexpr (std::is_signed_v<T>) return T(a >> std::min(by, kWidth - 1));
  return by < kWidth ? T(a >> by) : T{0};
}
u32 CountZeros(u32 a) { return u32(std::countl_zero(a)); }
u32 CountOnes(u32 a) { return u32(std::popcount(a)); }
u32 Reverse(u32 a) {
  a = (a >> 1 & 0x55555555) | (a & 0x55555555) << 1;
  a = (a >> 2 & 0x33333333) | (a & 0x33333333) << 2;
  a = (a >> 4 & 0x0f0f0f0f) | (a & 0x0f0f0f0f) << 4;
  return __builtin_bswap32(a);
}
// Returns the left shift that brings the highest set bit to the top.
u32 FindShift(u32 a) { return a == 0 ? kAllLanes : u32(std::countl_zero(a)); }
template <u32 (*kCompute)(s16, s16)>
u32 Halves(u32 a, u32 b) {
  return (kCompute(s16(a), s16(b)) & 0xffff) | kCompute(s16(a >> 16), s16(b >> 16)) << 16;
}
u32 MaxHalf(s16 a, s16 b) { return u16(std::max(a, b)); }
u32 MinHalf(s16 a, s16 b) { return u16(std::min(a, b)); }
u32 Permute(u32 a, u32 b, u32 selector) {
  const u64 bytes = u64{b} << 32 | a;
  u32 result = 0;
  for (u32 i = 0; i < 4; ++i) {
    const u32 which = selector >> (4 * i) & 0xf;
    u32 byte = u32(bytes >> (8 * (which & 7))) & 0xff;
    if ((which & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
    result |= byte << (8 * i);
  }
  return result;
}
u32 FunnelLeft(u32 low, u32 high, u32 by) { return u32((u64{high} << 32 | low) << (by & 31) >> 32); }
template <typename T>
T Insert(T from, T to, u32 at, u32 length) {
  constexpr u32 kWidth = 8 * sizeof(T);
  at &= 0xff;
  length &= 0xff;
  if (at >= kWidth || length == 0) return to;
  const T bits = length >= kWidth ? T(~T{0}) : T((T{1} << length) - 1);
  return T((to & ~(bits << at)) | (from & bits) << at);
}
template <typename T>
void InsertLanes(const Registers& at, const Instruction& i, u32 mask) {
  const T* const a = at.row<T>(i.operands[1]);
  const T* const b = at.row<T>(i.operands[2]);
  const u32* const c = at.row<u32>(i.operands[3]);
  const u32* const d = at.row<u32>(i.operands[4]);
  ForLanes(at.row<T>(i.operands[0]), mask, [&](u32 lane) { return Insert(a[lane], b[lane], c[lane], d[lane]); });
}
u32 Extract(u32 a, u32 at, u32 length) {
  at &= 0xff;
  length &= 0xff;
  const u64 bits = length >= 32 ? ~u64{0} : (u64{1} << length) - 1;
  return at >= 32 ? 0 : u32(a >> at & bits);
}

// Converts the lower part of a register, of type `From`, to `To` in a register of type `D`.
template <typename D, typename To, typename A, typename From>
D Convert(A a) {
  return D(To(From(a)));
}
f32 WidenHalf(u16 half) {
  const u32 sign = u32(half & 0x8000) << 16;
  const u32 exponent = half >> 10 & 31;
  const u32 fraction = half & 1023;
  if (exponent == 31) return std::bit_cast<f32>(sign | 0x7f800000 | fraction << 13);
  if (exponent != 0) return std::bit_cast<f32>(sign | (exponent + 112) << 23 | fraction << 13);
  const f32 small = f32(fraction) * 0x1p-24f;
  return sign != 0 ? -small : small;
}
s32 TowardZero(f32 a) {
  if (a != a) return 0;
  if (a >= 0x1p31f) return std::numeric_limits<s32>::max();
  return a <= -0x1p31f ? std::numeric_limits<s32>::min() : s32(a);
}
u64 ToShared(u64 a) { return a - kSharedWindow; }
u64 ToLocal(u64 a) { return a - kLocalWindow; }
u64 FromShared(u64 a) { return a + kSharedWindow; }
u64 FromLocal(u64 a) { return a + kLocalWindow; }

template <typename T>
bool Equal(T a, T b) {
  return a == b;
}
template <typename T>
bool Differ(T a, T b) {
  return a != b;
}
template <typename T>
bool Less(T a, T b) {
  return a < b;
}
template <typename T>
bool LessOrEqual(T a, T b) {
  return a <= b;
}
template <typename T>
bool Greater(T a, T b) {
  return a > b;
}
template <typename T>
bool GreaterOrEqual(T a, T b) {
  return a >= b;
}

// --- lanes that meet. `mask` has the lanes of the member mask, all of which are here.

enum class From { kXor, kUp, kIndex };
template <From kFrom>
void Shuffle(const Registers& at, const Instruction& i, u32 mask) {
  u32 values[kLanes];
  std::memcpy(values, at.row<u32>(i.operands[2]), sizeof(values));
  const u32* const which = at.row<u32>(i.operands[3]);
  const u32* const clamp = at.row<u32>(i.operands[4]);
  u32* const to = at.row<u32>(i.operands[0]);
  u32 valid = 0;
  for (u32 rest = mask; rest != 0; rest &= rest - 1) {
    const auto lane = u32(std::countr_zero(rest));
    const u32 segments = clamp[lane] >> 8 & 31;
    const u32 last = (lane & segments) | (clamp[lane] & 31 & ~segments);
    const u32 by = which[lane] & 31;
    s32 source = 0;
    bool is_valid = false;
    if constexpr (kFrom == From::kUp) {
      source = s32(lane) - s32(by);
      is_valid = source >= s32(last);
    } else {
      source = s32(kFrom == From::kXor ? lane ^ by : (lane & segments) | (by & ~segments));
      is_valid = source <= s32(last);
    }
    if (is_valid) valid |= 1u << lane;
    to[lane] = values[is_valid ? u32(source) : lane];
  }
  SetBits(at.row<u32>(i.operands[1]), mask, valid);
}
void Ballot(const Registers& at, const Instruction& i, u32 mask) {
  const u32 votes = at.predicate(i.operands[1]) & mask;
  ForLanes(at.row<u32>(i.operands[0]), mask, [&](u32) { return votes; });
}
template <u32 (*kCombine)(u32, u32)>
void Reduce(const Registers& at, const Instruction& i, u32 mask) {
  const u32* const values = at.row<u32>(i.operands[1]);
  u32 result = 0;
  for (u32 rest = mask; rest != 0; rest &= rest - 1) result = kCombine(result, values[std::countr_zero(rest)]);
  ForLanes(at.row<u32>(i.operands[0]), mask, [&](u32) { return result; });
}
void Nothing(const Registers&, const Instruction&, u32) {}

// --- the table

#define SETP(type, shape)                                                                                          \
  {"setp.eq." #type, shape, &Compare<type, Equal<type>>}, {"setp.ne." #type, shape, &Compare<type, Differ<type>>}, \
      {"setp.lt." #type, shape, &Compare<type, Less<type>>},                                                       \
      {"setp.le." #type, shape, &Compare<type, LessOrEqual<type>>},                                                \
      {"setp.gt." #type, shape, &Compare<type, Greater<type>>}, {                                                  \
    "setp.ge." #type, shape, &Compare<type, GreaterOrEqual<type>>                                                  \
  }
#define TWO(name, type, shape, function) \
  { name "." #type, shape, &Binary<type, type, type, function<type>> }
#define THREE(name, type, shape, function) \
  { name "." #type, shape, &Ternary<type, function> }
#define ONE(name, type, shape, function) \
  { name "." #type, shape, &Unary<type, type, function> }
#define BITS(name, bits, type, shape, function) \
  { name ".b" #bits, shape, &Binary<type, type, type, function<type>> }
#define MOVE(name, type, shape) \
  { name, shape, &Unary<type, type, Same<type>> }
#define CVT(name, shape, d, to, a, from) \
  { "cvt." name, shape, &Unary<d, a, Convert<d, to, a, from>> }

constexpr Operation kOperations[] = {
    SETP(s16, "phh"),
    SETP(s32, "pww"),
    SETP(s64, "pdd"),
    SETP(u32, "pww"),
    SETP(u64, "pdd"),
    SETP(f32, "pww"),
    {"setp.eq.b32", "pww", &Compare<u32, Equal<u32>>},
    {"setp.eq.b64", "pdd", &Compare<u64, Equal<u64>>},
    {"add.s16", "hhh", &Binary<u16, u16, u16, Add<u16>>},
    {"add.s32", "www", &Binary<u32, u32, u32, Add<u32>>},
    {"add.s64", "ddd", &Binary<u64, u64, u64, Add<u64>>},
    TWO("add", u64, "ddd", Add),
    {"sub.s32", "www", &Binary<u32, u32, u32, Subtract<u32>>},
    {"sub.s64", "ddd", &Binary<u64, u64, u64, Subtract<u64>>},
    {"sub.rn.f64", "ddd", &Binary<f64, f64, f64, Subtract<f64>>},
    {"mul.lo.s32", "www", &Binary<u32, u32, u32, Multiply<u32>>},
    {"mul.lo.s64", "ddd", &Binary<u64, u64, u64, Multiply<u64>>},
    {"mul.hi.s32", "www", &Binary<s32, s32, s32, MultiplyHigh<s32, s64>>},
    {"mul.hi.u32", "www", &Binary<u32, u32, u32, MultiplyHigh<u32, u64>>},
    {"mul.hi.u64", "ddd", &Binary<u64, u64, u64, MultiplyHigh<u64, unsigned __int128>>},
    {"mul.wide.u16", "whh", &Binary<u32, u16, u16, MultiplyWide<u16, u32>>},
    {"mul.wide.u32", "dww", &Binary<u64, u32, u32, MultiplyWide<u32, u64>>},
    {"mul.rn.f32", "www", &Binary<f32, f32, f32, Multiply<f32>>},
    {"mul.rn.f64", "ddd", &Binary<f64, f64, f64, Multiply<f64>>},
    {"mad.lo.s32", "wwww", &Ternary<u32, MultiplyAdd<u32>>},
    {"mad.lo.s64", "dddd", &Ternary<u64, MultiplyAdd<u64>>},
    TWO("div", u32, "www", Divide),
    TWO("div", u64, "ddd", Divide),
    {"div.rn.f64", "ddd", &Binary<f64, f64, f64, Divide<f64>>},
    TWO("min", u32, "www", Min),
    TWO("min", u64, "ddd", Min),
    TWO("min", s32, "www", Min),
    TWO("min", s64, "ddd", Min),
    TWO("max", u32, "www", Max),
    TWO("max", u64, "ddd", Max),
    TWO("max", s32, "www", Max),
    TWO("max", s64, "ddd", Max),
    {"max.s16x2", "www", &Binary<u32, u32, u32, Halves<MaxHalf>>},
    {"min.s16x2", "www", &Binary<u32, u32, u32, Halves<MinHalf>>},
    {"abs.s32", "ww", &Unary<u32, u32, Absolute<u32, s32>>},
    {"abs.s64", "dd", &Unary<u64, u64, Absolute<u64, s64>>},
    {"abs.f32", "ww", &Unary<f32, f32, AbsoluteFloat>},
    {"neg.s32", "ww", &Unary<u32, u32, Negate<u32>>},
    {"neg.s64", "dd", &Unary<u64, u64, Negate<u64>>},
    ONE("neg", f32, "ww", Negate<f32>),
    BITS("and", 16, u16, "hhh", And),
    BITS("and", 32, u32, "www", And),
    BITS("and", 64, u64, "ddd", And),
    BITS("or", 32, u32, "www", Or),
    BITS("or", 64, u64, "ddd", Or),
    BITS("xor", 16, u16, "hhh", Xor),
    BITS("xor", 32, u32, "www", Xor),
    BITS("xor", 64, u64, "ddd", Xor),
    {"not.b32", "ww", &Unary<u32, u32, Not<u32>>},
    {"not.b64", "dd", &Unary<u64, u64, Not<u64>>},
    {"and.pred", "ppp", &Predicates<And<u32>>},
    {"or.pred", "ppp", &Predicates<Or<u32>>},
    {"xor.pred", "ppp", &Predicates<Xor<u32>>},
    {"not.pred", "pp", &NotPredicate},
    {"mov.pred", "pp", &MovePredicate},
    {"shl.b32", "www", &Binary<u32, u32, u32, ShiftLeft<u32>>},
    {"shl.b64", "ddw", &Binary<u64, u64, u32, ShiftLeft<u64>>},
    {"shr.u16", "hhw", &Binary<u16, u16, u32, ShiftRight<u16>>},
    {"shr.u32", "www", &Binary<u32, u32, u32, ShiftRight<u32>>},
    {"shr.s32", "www", &Binary<s32, s32, u32, ShiftRight<s32>>},
    {"shr.u64", "ddw", &Binary<u64, u64, u32, ShiftRight<u64>>},
    {"shf.l.wrap.b32", "wwww", &Ternary<u32, FunnelLeft>},
    THREE("bfe", u32, "wwww", Extract),
    {"bfi.b32", "wwwww", &InsertLanes<u32>},
    {"bfi.b64", "dddww", &InsertLanes<u64>},
    {"bfind.shiftamt.u32", "ww", &Unary<u32, u32, FindShift>},
    {"brev.b32", "ww", &Unary<u32, u32, Reverse>},
    {"clz.b32", "ww", &Unary<u32, u32, CountZeros>},
    {"popc.b32", "ww", &Unary<u32, u32, CountOnes>},
    {"prmt.b32", "wwww", &Ternary<u32, Permute>},
    MOVE("mov.b16", u16, "hh"),
    MOVE("mov.u16", u16, "hh"),
    MOVE("mov.b32", u32, "ww"),
    MOVE("mov.u32", u32, "ww"),
    MOVE("mov.f32", u32, "ww"),
    MOVE("mov.b64", u64, "dd"),
    MOVE("mov.u64", u64, "dd"),
    MOVE("mov.f64", u64, "dd"),
    {"mov.b32", "hhw", &Unpack<u16, u32>},
    {"mov.b32", "whh", &Pack<u16, u32>},
    {"mov.b64", "wwd", &Unpack<u32, u64>},
    {"mov.b64", "dww", &Pack<u32, u64>},
    {"selp.b16", "hhhp", &Select<u16>},
    {"selp.u16", "hhhp", &Select<u16>},
    {"selp.b32", "wwwp", &Select<u32>},
    {"selp.u32", "wwwp", &Select<u32>},
    {"selp.f32", "wwwp", &Select<u32>},
    {"selp.b64", "dddp", &Select<u64>},
    {"selp.u64", "dddp", &Select<u64>},
    {"selp.s64", "dddp", &Select<u64>},
    {"selp.f64", "dddp", &Select<u64>},
    CVT("s32.s8", "ww", u32, s32, u32, int8_t),
    CVT("s32.s16", "ww", u32, s32, u32, int16_t),
    CVT("s64.s32", "dw", u64, s64, u32, s32),
    CVT("u16.u32", "hw", u16, u16, u32, u32),
    CVT("u32.u16", "wh", u32, u32, u16, u16),
    CVT("u32.u64", "wd", u32, u32, u64, u64),
    CVT("u64.u32", "dw", u64, u64, u32, u32),
    CVT("f64.f32", "dw", f64, f64, f32, f32),
    CVT("rn.f32.f64", "wd", f32, f32, f64, f64),
    CVT("rn.f64.s64", "dd", f64, f64, s64, s64),
    CVT("rn.f64.u32", "dw", f64, f64, u32, u32),
    CVT("rn.f64.u64", "dd", f64, f64, u64, u64),
    {"cvt.f32.f16", "wh", &Unary<f32, u16, WidenHalf>},
    {"cvt.rzi.s32.f32", "ww", &Unary<s32, f32, TowardZero>},
    {"cvta.local.u64", "dd", &Unary<u64, u64, FromLocal>},
    {"cvta.shared.u64", "dd", &Unary<u64, u64, FromShared>},
    {"cvta.to.local.u64", "dd", &Unary<u64, u64, ToLocal>},
    {"cvta.to.shared.u64", "dd", &Unary<u64, u64, ToShared>},
    {"cvta.to.global.u64", "dd", &Unary<u64, u64, Same<u64>>},
    {"shfl.sync.bfly.b32", "wpwwww", &Shuffle<From::kXor>, 5},
    {"shfl.sync.up.b32", "wpwwww", &Shuffle<From::kUp>, 5},
    {"shfl.sync.idx.b32", "wpwwww", &Shuffle<From::kIndex>, 5},
    {"vote.sync.ballot.b32", "wpw", &Ballot, 2},
    {"redux.sync.add.u32", "www", &Reduce<Add<u32>>, 2},
    {"redux.sync.max.u32", "www", &Reduce<Max<u32>>, 2},
    {"bar.warp.sync", "w", &Nothing, 0},
};

bool Fits(std::string_view shape, std::string_view operands) {
  return std::ranges::equal(shape, operands, [](char wanted, char is) { return is == '*' || is == wanted; });
}

}  // namespace

const Operation* FindOperation(std::string_view name, std::string_view shape) {
  const auto found = std::ranges::find_if(
      kOperations, [&](const Operation& operation) { return operation.name == name && Fits(operation.shape, shape); });
  return found == std::end(kOperations) ? nullptr : &*found;
}

bool IsOperation(std::string_view name) {
  return std::ranges::any_of(kOperations, [&](const Operation& operation) { return operation.name == name; });
}

}  // namespace sortition::testing::ptx
