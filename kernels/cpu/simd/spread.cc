// Approximate sums of logits and of their squares.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/spread.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
//
#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/law.inc"
//
#include "kernels/cpu/simd/load.inc"
//
#include "kernels/cpu/simd/spread.inc"

HWY_BEFORE_NAMESPACE();
namespace sortition::kernels::cpu::HWY_NAMESPACE {
namespace {

// Adds `count` groups, an even number, whose tokens all show their sent logits. Adds nothing and returns false unless
// the sums of squares show that no logit is below the lowest; masked logits are.
template <DType kType>
HWY_INLINE bool AddWhole(const std::byte* elements, uint32_t count, float largest_square, SpreadTotals* totals) {
  constexpr size_t kGroupBytes = law::kGroupSize * ElementBytes(kType);
  SummedFloats<kType> floats;
  for (uint32_t i = 0; i < count; i += 2) {
    floats.LoadGroup(elements + i * kGroupBytes, 0);
    floats.LoadGroup(elements + (i + 1) * kGroupBytes, 1);
  }
  const DF32 d;
  if (!hn::AllTrue(d, hn::Lt(floats.LargestSquares(), hn::Set(d, largest_square)))) return false;
  floats.MoveTo(totals);
  return true;
}

// Adds the groups' live tokens that show their sent logits, and returns their number.
template <DType kType>
HWY_INLINE uint32_t AddLive(const RowView& row, uint32_t first, uint32_t end, float lowest, SpreadTotals* totals) {
  const DF32 d;
  uint32_t added = 0;
  for (uint32_t group = first; group < end;) {
    // At most 64 numbers to a lane, as SummedFloats does.
    VF32 sum = hn::Zero(d), squares = sum;
    for (const uint32_t some = HWY_MIN(end, group + kLanes); group < some; ++group) {
      ForKeysOfGroup<kType>(row, group, [&](uint32_t, V32 keys) HWY_ATTR {
        const M32 live = hn::Ne(keys, hn::Zero(D32()));
        const VF32 logits = Floats(KeyBits(hn::Max(keys, hn::Set(D32(), kMaskedKey))));
        const VF32 x = hn::IfThenElseZero(hn::RebindMask(d, live), hn::Max(logits, hn::Set(d, lowest)));
        sum = hn::Add(sum, x);
        squares = hn::MulAdd(x, x, squares);
        added += uint32_t(hn::CountTrue(D32(), live));
      });
    }
    totals->Add(sum, squares);
  }
  return added;
}

// True if these groups lie in place and all their tokens show what was sent. Groups of a lazy copy do not lie in place.
HWY_INLINE bool AreWhole(const RowView& row, uint32_t first, uint32_t end) {
  if (end > GroupsInPlace(row) || row.lazy != nullptr) return false;
  uint64_t sent = ~uint64_t{0};
  for (uint32_t i = first; row.sent_words != nullptr && i < end; ++i) sent &= row.sent_words[i];
  return sent == ~uint64_t{0};
}

}  // namespace

Spread SumSpread(const RowView& row, float lowest) {
  return WithDType(row.dtype, [&]<DType kType>() HWY_ATTR {
    constexpr float kMasked = 65504.0f;
    const float largest_square = HWY_MIN(lowest * lowest, kMasked * kMasked);
    SpreadTotals totals;
    uint32_t count = 0;
    const bool has_sums = row.sent_words == nullptr && row.spread.largest_square < largest_square;
    for (uint32_t first = has_sums ? row.spread.groups : 0; first < row.groups;) {
      const uint32_t end = HWY_MIN(row.groups, first + SummedFloats<kType>::kMostGroups);
      if ((end - first) % 2 == 0 && AreWhole(row, first, end) &&
          AddWhole<kType>(PlaceOfGroup(row, first), end - first, largest_square, &totals)) {
        count += (end - first) * law::kGroupSize;
      } else {
        count += AddLive<kType>(row, first, end, lowest, &totals);
      }
      first = end;
    }
    Spread spread = totals.Of(count);
    if (has_sums) {
      spread.count += row.spread.spread.count;
      spread.sum += row.spread.spread.sum;
      spread.squares += row.spread.spread.squares;
    }
    return spread;
  });
}

}  // namespace sortition::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
