// Weights and their sums.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/weigh.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
//
#include "kernels/cpu/sent_from.h"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/law.inc"
//
#include "kernels/cpu/simd/load.inc"

HWY_BEFORE_NAMESPACE();
namespace sortition::kernels::cpu::HWY_NAMESPACE {
namespace {

template <class Weigher>
class Adder {
 public:
  explicit HWY_INLINE Adder(const Weigher& weigher)
      : weigher_(weigher), even_(hn::Zero(D64())), odd_(hn::Zero(D64())) {}

  HWY_INLINE void AddFloats(VF32 x) {
    const EvenOdd weights = weigher_(x);
    even_ = hn::Add(even_, weights.even);
    odd_ = hn::Add(odd_, weights.odd);
  }

  HWY_INLINE void AddKeys(V32 keys) { AddFloats(weigher_.Numbers(keys)); }

  HWY_INLINE uint64_t Sum() const { return SumOf(hn::Add(even_, odd_)); }

 private:
  const Weigher weigher_;
  V64 even_, odd_;
};

}  // namespace

uint64_t SumWeights(const Row& row, const uint32_t* groups, uint32_t count, Candidate last, const RowScale& scale) {
  // True if tokens after `last`, and masked ones, weigh nothing: then a group may be read as it is.
  const bool all = last.key() < scale.first_weighted_key && scale.first_weighted_key > kMaskedKey;
  return WithWeigher(scale, [&]<class Weigher>(const Weigher& weigher) HWY_ATTR {
    return WithDType(row.dtype, [&]<DType kType>() HWY_ATTR {
      Adder<Weigher> adder(weigher);
      AddTokens<kType>(row, groups, count, last, all, &adder);
      return adder.Sum();
    });
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
      for (uint32_t i = 0; i < count; ++i) {
        const uint32_t group = groups[i];
        const std::byte* const elements = ElementsOfGroup(row, group);
        const uint64_t sent = row.sent_words == nullptr ? ~uint64_t{0} : row.sent_words[group];
        for (uint32_t offset = 0; offset < law::kGroupSize; offset += kLanes) {
          const VF32 x = Floats(LoadBits<kType>(elements + offset * ElementBytes(kType)));
          const auto shown = hn::RebindMask(df, MaskOf(uint32_t(sent >> offset)));
          const VF32 counted = hn::IfThenElse(hn::And(shown, hn::Ge(x, first)), x, weigher.weightless());
          const auto [even, odd] = weigher(counted);
          sums[0] = hn::Add(sums[0], even);
          sums[1] = hn::Add(sums[1], odd);
          const V32 is_upper = hn::VecFromMask(d, hn::RebindMask(d, hn::Ge(counted, upper)));
          upper_sums[0] = hn::Add(upper_sums[0], hn::And(even, Wide(hn::DupEven(is_upper))));
          upper_sums[1] = hn::Add(upper_sums[1], hn::And(odd, Wide(hn::DupOdd(is_upper))));
        }
      }
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
