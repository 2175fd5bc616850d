// Selection of keys and groups that are large enough.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/select.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
//
#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/law.inc"
//
#include "kernels/cpu/simd/load.inc"

HWY_BEFORE_NAMESPACE();
namespace sortition::kernels::cpu::HWY_NAMESPACE {
namespace {

// `count` is a multiple of kLanes.
HWY_INLINE uint32_t CountAtLeast(const uint32_t* keys, uint32_t count, uint32_t floor) {
  const D32 d;
  const V32 least = hn::Set(d, floor);
  size_t reached = 0;
  for (uint32_t i = 0; i < count; i += kLanes) reached += hn::CountTrue(d, AtLeast(hn::LoadU(d, keys + i), least));
  return uint32_t(reached);
}

}  // namespace

void MaskWholeGroups(const uint64_t* words, const uint32_t* keys, uint32_t groups, uint32_t* masked) {
  const D32 d;
  const D64 d64;
  const uint32_t whole = groups / kLanes * kLanes;
  for (uint32_t i = 0; i < whole; i += kLanes) {
    const V32 first = Narrow(hn::LoadU(d64, words + i));
    const V32 second = Narrow(hn::LoadU(d64, words + i + kLanes / 2));
    const V32 any = hn::Or(hn::ConcatEven(d, second, first), hn::ConcatOdd(d, second, first));
    hn::StoreU(hn::IfThenZeroElse(hn::Eq(any, hn::Zero(d)), hn::LoadU(d, keys + i)), d, masked + i);
  }
  for (uint32_t i = groups; i < (groups + 63) / 64 * 64; i += kLanes) hn::StoreU(hn::Zero(d), d, masked + i);
  for (uint32_t i = whole; i < groups; ++i) masked[i] = words[i] == 0 ? 0 : keys[i];  // reads no word beyond the last
}

uint32_t LowerBoundOfNth(const uint32_t* keys, uint32_t count, uint32_t n, uint32_t floor, uint32_t* buffer) {
  if (count < n) return floor;
  const D32 d;
  count = (count + 63) / 64 * 64;
  // Folds keys to maxima while 3 n of these or more are left: two of the n largest keys are seldom folded into one.
  uint32_t folded = count;
  while (folded / 2 >= 3 * n) folded /= 2;
  folded = (folded + kLanes - 1) / kLanes * kLanes;
  V32 least = hn::Set(d, ~0u);
  V32 most = hn::Zero(d);
  for (uint32_t i = 0; i < folded; i += kLanes) {
    V32 max = hn::LoadU(d, keys + i);
    for (uint32_t j = i + folded; j < count; j += folded) max = hn::Max(max, hn::LoadU(d, keys + j));
    hn::StoreU(max, d, buffer + i);
    least = hn::Min(least, max);
    most = hn::Max(most, max);
  }
  // At least n folded keys reach `low`, fewer reach `high`.
  uint32_t low = HWY_MAX(floor, hn::GetLane(hn::MinOfLanes(d, least)));
  uint32_t high = hn::GetLane(hn::MaxOfLanes(d, most)) + 1;
  uint32_t reached = CountAtLeast(buffer, folded, low);
  if (reached < n) return floor;
  while (high - low > 1 && reached > n + n / 8) {
    const uint32_t middle = low + (high - low) / 2;
    const uint32_t reach_middle = CountAtLeast(buffer, folded, middle);
    if (reach_middle >= n) {
      low = middle;
      reached = reach_middle;
    } else {
      high = middle;
    }
  }
  return low;
}

uint32_t SelectAtLeast(const uint32_t* values, uint32_t count, uint32_t floor, uint32_t* indices) {
  const D32 d;
  const V32 least = hn::Set(d, floor);
  const uint32_t whole = count / kLanes * kLanes;
  V32 index = hn::Iota(d, 0);
  uint32_t* to = indices;
  for (uint32_t i = 0; i < whole; i += kLanes) {
    to += StoreWhere(AtLeast(hn::LoadU(d, values + i), least), index, to);
    index = hn::Add(index, hn::Set(d, kLanes));
  }
  if (whole < count) {
    const M32 rest = hn::FirstN(d, count - whole);
    to += StoreWhere(hn::And(AtLeast(hn::LoadU(d, values + whole), least), rest), index, to);
  }
  return uint32_t(to - indices);
}

uint32_t FindMax(const uint32_t* values, uint32_t count) {
  const D32 d;
  const uint32_t whole = count / kLanes * kLanes;
  const M32 rest = hn::FirstN(d, count - whole);
  V32 max = hn::IfThenElseZero(rest, hn::LoadU(d, values + whole));
  V32 other = max;
  uint32_t at = 0;
  for (; at + 2 * kLanes <= whole; at += 2 * kLanes) {
    max = hn::Max(max, hn::LoadU(d, values + at));
    other = hn::Max(other, hn::LoadU(d, values + at + kLanes));
  }
  if (at < whole) max = hn::Max(max, hn::LoadU(d, values + at));
  const V32 largest = hn::MaxOfLanes(d, hn::Max(max, other));
  uint32_t i = 0;
  while (hn::AllFalse(d, hn::Eq(hn::LoadU(d, values + i), largest))) i += kLanes;
  return i + uint32_t(hn::FindFirstTrue(d, hn::Eq(hn::LoadU(d, values + i), largest)));
}

}  // namespace sortition::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
