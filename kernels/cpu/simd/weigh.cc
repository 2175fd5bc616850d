// Weights and their sums.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/weigh.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
//
#include "kernels/cpu/scaled_powers.h"
#include "kernels/cpu/sent_from.h"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/law.inc"
//
#include "kernels/cpu/simd/load.inc"

HWY_BEFORE_NAMESPACE();
namespace sortition::kernels::cpu::HWY_NAMESPACE {
namespace {

// Adds weights of groups, as AddTokens asks.
template <class Weigher>
class Adder {
 public:
  using Distances = GroupDistances;

  explicit HWY_INLINE Adder(const Weigher& weigher)
      : weigher_(weigher), even_(hn::Zero(D64())), odd_(hn::Zero(D64())) {}

  HWY_INLINE void Measure(VF32 x, uint32_t offset, Distances* group) const {
    group->Put(weigher_.Distances(x), offset);
  }
  HWY_INLINE void MeasureKeys(V32 keys, uint32_t offset, Distances* group) const {
    Measure(weigher_.Numbers(keys), offset, group);
  }

  HWY_INLINE void Add(const Distances& group) {
    for (uint32_t offset = 0; offset < law::kGroupSize; offset += kLanes) {
      const EvenOdd weights = weigher_.Weights(group.At(offset));
      even_ = hn::Add(even_, weights.even);
      odd_ = hn::Add(odd_, weights.odd);
    }
  }

  HWY_INLINE uint64_t Sum() { return SumOf(hn::Add(even_, odd_)); }

 private:
  const Weigher weigher_;
  V64 even_, odd_;
};

#if SORTITION_X86_BITS == 256 || SORTITION_X86_BITS == 128
// The same in doubles, for rows without a curve. A power comes from memory with its octave, so nothing is shifted by
// that. It takes half the time, and a quarter where neither shifts nor look-ups go lane by lane.
//
// Until Sum, floating-point operations round towards zero. The compiler does not know of that; so each operation that
// rounds takes a constant that changes, for all the compiler sees, when the mode does.
class DoubleAdder {
 public:
  struct Distances {
    alignas(64) uint32_t t[law::kGroupSize];
  };

  explicit HWY_INLINE DoubleAdder(const RowScale& row)
      : scale_(row, TooSmall::kToWeigh),
        weightless_(hn::Set(D32(), FirstBelow(row.scale))),
        curve_top_(hn::BitCast(D64(), hn::Set(DF64(), 0x1p28))),
        origin_(hn::Set(DF64(), 0x1p52)),
        sum_(hn::Zero(D64())),
        mode_(_mm_getcsr()) {
    _mm_setcsr(mode_ | _MM_ROUND_TOWARD_ZERO);
    asm volatile("" : "+x"(curve_top_.raw), "+x"(origin_.raw));
  }

  HWY_INLINE void Measure(VF32 x, uint32_t offset, Distances* group) const {
    // A number that is too small for fixed point becomes -2^31, from which on nothing weighs anything.
    const V32 below = hn::Min(FixedPointBelow(x, scale_), weightless_);
    V64 even;
    hn::Store(DistanceOf(below, scale_, &even), D32(), group->t + offset);
  }
  HWY_INLINE void MeasureKeys(V32 keys, uint32_t offset, Distances* group) const {
    Measure(Floats(KeyBits(hn::Max(keys, scale_.least_key))), offset, group);
  }

  HWY_INLINE void Add(const Distances& group) {
    // A double from 2^52 on holds integers alone: a sum with a weight that has a fraction loses that. A group's sums
    // stay below 2^53.
    VF64 even = origin_;
    VF64 odd = origin_;
    for (uint32_t offset = 0; offset < law::kGroupSize; offset += kLanes) {
      const uint32_t* const t = group.t + offset;
      const V32 lanes = hn::Load(D32(), t);
      const V32 z = hn::And(hn::ShiftLeft<4>(lanes), hn::Set(D32(), 0x1fffff0u));
      const V32 slope = WeightSlope(lanes);
      even = hn::MulAdd(PowersOf(t), CurveOf(hn::MulEven(z, slope)), even);
      odd = hn::MulAdd(PowersOf(t + 1), CurveOf(hn::MulEven(OddToEven(z), OddToEven(slope))), odd);
    }
    sum_ = hn::Add(sum_, hn::Add(Mantissa(even), Mantissa(odd)));
  }

  HWY_INLINE uint64_t Sum() {
    asm volatile("" : "+x"(sum_.raw));
    _mm_setcsr(mode_);
    return SumOf(sum_);
  }

 private:
  using DF64 = hn::ScalableTag<double>;
  using VF64 = hn::Vec<DF64>;

  // Returns how far below the maximum, in fixed point, a number weighs nothing; that is less than 64 octaves.
  static uint32_t FirstBelow(const law::Scale& scale) {
    return uint32_t((uint64_t{46} << (26 + scale.shift)) / scale.multiplier);
  }

  // Takes the lanes 0, 2, ...
  static HWY_INLINE VF64 PowersOf(const uint32_t* t) {
    const auto power = [t](uint32_t lane) { return &kScaledPowers[t[lane] >> 21]; };
    const __m128d low = _mm_loadh_pd(_mm_load_sd(power(0)), power(2));
#if SORTITION_X86_BITS == 128
    return VF64{low};
#else
    const __m256d high = _mm256_blend_pd(_mm256_broadcast_sd(power(4)), _mm256_broadcast_sd(power(6)), 8);
    return VF64{_mm256_blend_pd(_mm256_castpd128_pd256(low), high, 12)};
#endif
  }

  // law::WeightCurve of 2^25 times what it takes from 2^28, and less. Below 2^28 a double has 25 bits for fractions.
  HWY_INLINE VF64 CurveOf(V64 taken) const {
    const V64 whole = hn::And(taken, hn::Set(D64(), ~uint64_t{0} << 25));
    return hn::BitCast(DF64(), hn::Sub(curve_top_, whole));
  }

  HWY_INLINE V64 Mantissa(VF64 sum) const { return hn::Sub(hn::BitCast(D64(), sum), hn::BitCast(D64(), origin_)); }

  const ScaleLanes scale_;
  const V32 weightless_;
  V64 curve_top_;
  VF64 origin_;
  V64 sum_;
  const uint32_t mode_;
};
#endif

template <class Adder>
HWY_INLINE uint64_t SumOfGroups(const Row& row, const uint32_t* groups, uint32_t count, Candidate last,
                                const RowScale& scale, Adder* adder) {
  // True if tokens after `last`, and masked ones, weigh nothing: then a group may be read as it is.
  const bool all = last.key() < scale.first_weighted_key && scale.first_weighted_key > kMaskedKey;
  WithDType(row.dtype, [&]<DType kType>() HWY_ATTR { AddTokens<kType>(row, groups, count, last, all, adder); });
  return adder->Sum();
}

}  // namespace

uint64_t SumWeights(const Row& row, const uint32_t* groups, uint32_t count, Candidate last, const RowScale& scale) {
#if SORTITION_X86_BITS == 256 || SORTITION_X86_BITS == 128
  if (!scale.curve.is_on) {
    DoubleAdder adder(scale);
    return SumOfGroups(row, groups, count, last, scale, &adder);
  }
#endif
  return WithWeigher(scale, [&]<class Weigher>(const Weigher& weigher) HWY_ATTR {
    Adder<Weigher> adder(weigher);
    return SumOfGroups(row, groups, count, last, scale, &adder);
  });
}

uint64_t SplitWeights(const Row& row, const uint32_t* groups, uint32_t count, uint32_t floor, uint32_t high,
                      const RowScale& scale, uint64_t* above) {
  const DF32 df;
  const D32 d;
  const D64 d64;
  const VF32 first = hn::Set(df, SentFrom(HWY_MAX(floor, scale.first_weighted_key)));
  const VF32 upper = hn::Set(df, SentFrom(high));
  V64 sums[2] = {hn::Zero(d64), hn::Zero(d64)};
  V64 upper_sums[2] = {hn::Zero(d64), hn::Zero(d64)};
  WithWeigher(scale, [&](const auto& weigher) HWY_ATTR {
    WithDType(row.dtype, [&]<DType kType>() HWY_ATTR {
      GroupDistances distances[2];  // in turn, as AddTokens has them
      const auto add = [&](uint32_t i) HWY_ATTR {
        const std::byte* const elements = PlaceOfGroup(row, groups[i]);
        for (uint32_t offset = 0; offset < law::kGroupSize; offset += kLanes) {
          const auto [even, odd] = weigher.Weights(distances[i % 2].At(offset));
          sums[0] = hn::Add(sums[0], even);
          sums[1] = hn::Add(sums[1], odd);
          // Those that do not count weigh nothing, so it does not matter what they hold.
          const VF32 x = Floats(LoadBits<kType>(elements + offset * ElementBytes(kType)));
          const V32 is_upper = hn::VecFromMask(d, hn::RebindMask(d, hn::Ge(x, upper)));
          upper_sums[0] = hn::Add(upper_sums[0], hn::And(even, Wide(hn::DupEven(is_upper))));
          upper_sums[1] = hn::Add(upper_sums[1], hn::And(odd, Wide(hn::DupOdd(is_upper))));
        }
      };
      for (uint32_t i = 0; i < count; ++i) {
        const uint32_t group = groups[i];
        const std::byte* const elements = ElementsOfGroup(row, group);
        const uint64_t sent = row.sent_words == nullptr ? ~uint64_t{0} : row.sent_words[group];
        for (uint32_t offset = 0; offset < law::kGroupSize; offset += kLanes) {
          const VF32 x = Floats(LoadBits<kType>(elements + offset * ElementBytes(kType)));
          const auto shown = hn::RebindMask(df, MaskOf(uint32_t(sent >> offset)));
          const VF32 counted = hn::IfThenElse(hn::And(shown, hn::Ge(x, first)), x, weigher.weightless());
          distances[i % 2].Put(weigher.Distances(counted), offset);
        }
        if (i > 0) add(i - 1);
      }
      if (count > 0) add(count - 1);
    });
  });
  *above = SumOf(hn::Add(upper_sums[0], upper_sums[1]));
  return SumOf(hn::Add(sums[0], sums[1]));
}

uint64_t WeighCandidates(const Candidate* candidates, uint32_t count, const RowScale& row, uint64_t* weights) {
  const D32 d;
  const D64 d64;
  const Weigher weigher(row);
  uint64_t sum = 0;
  for (uint32_t i = 0; i < count; i += kLanes) {
    const auto* const ranks = reinterpret_cast<const uint64_t*>(candidates + i);
    const V32 loaded = hn::ConcatOdd(d, Narrow(hn::LoadU(d64, ranks + kLanes / 2)), Narrow(hn::LoadU(d64, ranks)));
    const V32 keys = hn::IfThenElseZero(hn::FirstN(d, count - i), loaded);  // what lies behind the list is no key
    const auto [even, odd] = weigher(weigher.Numbers(keys));
    hn::StoreInterleaved2(even, odd, d64, weights + i);
  }
  for (uint32_t i = 0; i < count; ++i) sum += weights[i];
  return sum;
}

void DistancesOfCandidates(const Candidate* candidates, uint32_t count, const RowScale& row, uint32_t* distances) {
  const D32 d;
  const D64 d64;
  const ScaleLanes scale(row, TooSmall::kToWeigh);
  for (uint32_t i = 0; i < count; i += kLanes) {
    const auto* const ranks = reinterpret_cast<const uint64_t*>(candidates + i);
    const V32 loaded = hn::ConcatOdd(d, Narrow(hn::LoadU(d64, ranks + kLanes / 2)), Narrow(hn::LoadU(d64, ranks)));
    const V32 keys = hn::IfThenElseZero(hn::FirstN(d, count - i), loaded);
    hn::StoreU(DistanceOfKey(hn::Max(keys, scale.least_key), scale), d, distances + i);
  }
}

}  // namespace sortition::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
