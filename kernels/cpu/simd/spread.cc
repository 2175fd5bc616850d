// Sums of logits and of their squares, nearly.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/spread.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
//
#include <limits>

#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/law.inc"
//
#include "kernels/cpu/simd/load.inc"

HWY_BEFORE_NAMESPACE();
namespace sortition::kernels::cpu::HWY_NAMESPACE {
namespace {

constexpr uint32_t kVectors = law::kGroupSize / kLanes;
// So many groups' logits are added as floats: 64 to a lane, each time off by 2^-24 of what there is at most.
constexpr uint32_t kGroupsAtOnce = kLanes;
static_assert(kSpreadError == kGroupsAtOnce * kVectors * 0x1p-24);

class SpreadAdder {
 public:
  HWY_INLINE explicit SpreadAdder(float lowest)
      : lowest_(hn::Set(DF32(), lowest)), sum_(hn::Zero(D())), squares_(sum_) {}

  // Groups of which every token shows what was sent. False if one of those is masked: then nothing was added.
  template <DType kType>
  HWY_INLINE bool AddWhole(const Row& row, const uint32_t* groups, uint32_t count) {
    constexpr uint32_t kChains = 4;
    static_assert(kVectors % kChains == 0);
    const DF32 d;
    VF32 s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
    VF32 q0 = s0, q1 = s0, q2 = s0, q3 = s0;
    VF32 least = s0;
    for (uint32_t i = 0; i < count; ++i) {
      const std::byte* const elements = ElementsOfGroup(row, groups[i]);
      for (uint32_t v = 0; v < kVectors; v += kChains) {
        const auto x = [&](uint32_t chain) HWY_ATTR {
          return Floats(LoadBits<kType>(elements + (v + chain) * kLanes * ElementBytes(kType)));
        };
        const VF32 x0 = x(0), x1 = x(1), x2 = x(2), x3 = x(3);
        least = hn::Min(hn::Min(least, hn::Min(x0, x1)), hn::Min(x2, x3));
        AddTo(hn::Max(x0, lowest_), &s0, &q0);
        AddTo(hn::Max(x1, lowest_), &s1, &q1);
        AddTo(hn::Max(x2, lowest_), &s2, &q2);
        AddTo(hn::Max(x3, lowest_), &s3, &q3);
      }
    }
    if (!hn::AllTrue(d, hn::Gt(least, hn::Set(d, -65504.0f)))) return false;
    Flush(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)), hn::Add(hn::Add(q0, q1), hn::Add(q2, q3)));
    count_ += count * law::kGroupSize;
    return true;
  }

  template <DType kType>
  HWY_INLINE void AddLive(const Row& row, const uint32_t* groups, uint32_t count) {
    const DF32 d;
    VF32 sum = hn::Zero(d), squares = sum;
    for (uint32_t i = 0; i < count; ++i) {
      ForKeysOfGroup<kType>(row, groups[i], [&](uint32_t, V32 keys) HWY_ATTR {
        const M32 live = hn::Ne(keys, hn::Zero(D32()));
        const VF32 x = hn::Max(Floats(KeyBits(hn::Max(keys, hn::Set(D32(), kMaskedKey)))), lowest_);
        AddTo(hn::IfThenElseZero(hn::RebindMask(d, live), x), &sum, &squares);
        count_ += uint32_t(hn::CountTrue(D32(), live));
      });
    }
    Flush(sum, squares);
  }

  HWY_INLINE Spread Get() const {
    return {count_, hn::GetLane(hn::SumOfLanes(D(), sum_)), hn::GetLane(hn::SumOfLanes(D(), squares_))};
  }

 private:
  using D = hn::Repartition<double, DF32>;

  static HWY_INLINE void AddTo(VF32 x, VF32* sum, VF32* squares) {
    *sum = hn::Add(*sum, x);
    *squares = hn::MulAdd(x, x, *squares);
  }

  HWY_INLINE void Flush(VF32 sum, VF32 squares) {
    const hn::Half<DF32> half;
    sum_ = hn::Add(sum_,
                   hn::Add(hn::PromoteTo(D(), hn::LowerHalf(half, sum)), hn::PromoteTo(D(), hn::UpperHalf(half, sum))));
    squares_ = hn::Add(squares_, hn::Add(hn::PromoteTo(D(), hn::LowerHalf(half, squares)),
                                         hn::PromoteTo(D(), hn::UpperHalf(half, squares))));
  }

  const VF32 lowest_;
  hn::Vec<D> sum_, squares_;
  uint32_t count_ = 0;
};

}  // namespace

Spread SumSpread(const Row& row, const uint32_t* groups, uint32_t count, float lowest) {
  return WithDType(row.dtype, [&]<DType kType>() HWY_ATTR {
    SpreadAdder adder(lowest);
    for (uint32_t i = 0; i < count; i += kGroupsAtOnce) {
      const uint32_t some = HWY_MIN(kGroupsAtOnce, count - i);
      uint64_t sent = ~uint64_t{0};
      for (uint32_t j = 0; row.sent_words != nullptr && j < some; ++j) sent &= row.sent_words[groups[i + j]];
      if (sent == ~uint64_t{0} && adder.AddWhole<kType>(row, groups + i, some)) continue;
      adder.AddLive<kType>(row, groups + i, some);
    }
    return adder.Get();
  });
}

}  // namespace sortition::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
