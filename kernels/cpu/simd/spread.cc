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
constexpr uint32_t kChains = 8;
// So many groups' logits are added as floats: at most 64 to a lane, each time off by 2^-24 of what there is at most.
constexpr uint32_t kGroupsAtOnce = 4 * kLanes;
static_assert(kVectors * 2 % kChains == 0 || kVectors % kChains == 0);
static_assert(kGroupsAtOnce * kVectors / kChains + kChains <= 64 && kSpreadError == 64 * 0x1p-24);

class SpreadAdder {
 public:
  HWY_INLINE explicit SpreadAdder(float lowest)
      : lowest_(hn::Set(DF32(), lowest)),
        square_of_lowest_(hn::Set(DF32(), HWY_MIN(lowest * lowest, 65504.0f * 65504.0f))),
        sum_(hn::Zero(D())),
        squares_(sum_) {}

  // `count` vectors of consecutive tokens, a multiple of kChains. False if the sums of squares do not show that none is
  // below the lowest, which masked ones are: then nothing was added.
  template <DType kType>
  HWY_INLINE bool AddWhole(const std::byte* elements, uint32_t count) {
    const DF32 d;
    // An addition waits for the one before it, so there are several chains.
    VF32 s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0;
    VF32 q0 = s0, q1 = s0, q2 = s0, q3 = s0, q4 = s0, q5 = s0, q6 = s0, q7 = s0;
    const auto x = [&](uint32_t i)
                       HWY_ATTR { return Floats(LoadBits<kType>(elements + i * kLanes * ElementBytes(kType))); };
    for (uint32_t i = 0; i < count; i += kChains) {
      AddTo(x(i), &s0, &q0);
      AddTo(x(i + 1), &s1, &q1);
      AddTo(x(i + 2), &s2, &q2);
      AddTo(x(i + 3), &s3, &q3);
      AddTo(x(i + 4), &s4, &q4);
      AddTo(x(i + 5), &s5, &q5);
      AddTo(x(i + 6), &s6, &q6);
      AddTo(x(i + 7), &s7, &q7);
    }
    const VF32 most = hn::Max(hn::Max(hn::Max(q0, q1), hn::Max(q2, q3)), hn::Max(hn::Max(q4, q5), hn::Max(q6, q7)));
    if (!hn::AllTrue(d, hn::Lt(most, square_of_lowest_))) return false;
    Flush(hn::Add(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)), hn::Add(hn::Add(s4, s5), hn::Add(s6, s7))),
          hn::Add(hn::Add(hn::Add(q0, q1), hn::Add(q2, q3)), hn::Add(hn::Add(q4, q5), hn::Add(q6, q7))));
    count_ += count * kLanes;
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
    LoadOnce(&x);
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

  const VF32 lowest_, square_of_lowest_;
  hn::Vec<D> sum_, squares_;
  uint32_t count_ = 0;
};

// True if the listed groups follow one another where the row lies, and every token of them shows what was sent. Those
// of a lazy copy do not.
HWY_INLINE bool AreWhole(const Row& row, const uint32_t* groups, uint32_t count) {
  const uint32_t last = groups[count - 1];
  if (last - groups[0] != count - 1 || last >= GroupsInPlace(row) || row.lazy != nullptr) return false;
  uint64_t sent = ~uint64_t{0};
  for (uint32_t i = 0; row.sent_words != nullptr && i < count; ++i) sent &= row.sent_words[groups[i]];
  return sent == ~uint64_t{0};
}

}  // namespace

Spread SumSpread(const Row& row, const uint32_t* groups, uint32_t count, float lowest) {
  return WithDType(row.dtype, [&]<DType kType>() HWY_ATTR {
    SpreadAdder adder(lowest);
    for (uint32_t i = 0; i < count; i += kGroupsAtOnce) {
      const uint32_t some = HWY_MIN(kGroupsAtOnce, count - i);
      if (some % 2 == 0 && AreWhole(row, groups + i, some) &&
          adder.template AddWhole<kType>(ElementsOfGroup(row, groups[i]), some * kVectors)) {
        continue;
      }
      adder.template AddLive<kType>(row, groups + i, some);
    }
    return adder.Get();
  });
}

}  // namespace sortition::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
