// Weights and their sums.
#include <cmath>
#include <limits>

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

// The sum of all weights, and of chosen ones.
struct Sums {
  uint64_t all;
  uint64_t chosen;
};

// Adds weights of groups, as AddTokens asks. AddSplit also sums apart the lanes that choose(offset) selects, with all
// bits set.
template <class Weigher>
class Adder {
 public:
  using Distances = GroupDistances;

  explicit HWY_INLINE Adder(const Weigher& weigher)
      : weigher_(weigher), all_(hn::Zero(D64()), hn::Zero(D64())), chosen_(all_) {}

  HWY_INLINE void Measure(VF32 x, uint32_t offset, Distances* group) const {
    group->Put(weigher_.Distances(x), offset);
  }
  HWY_INLINE void MeasureKeys(V32 keys, uint32_t offset, Distances* group) const {
    Measure(weigher_.Numbers(keys), offset, group);
  }

  HWY_INLINE void Add(const Distances& group) {
    for (uint32_t offset = 0; offset < law::kGroupSize; offset += kLanes) {
      const EvenOdd weights = weigher_.Weights(group.At(offset));
      all_.even = hn::Add(all_.even, weights.even);
      all_.odd = hn::Add(all_.odd, weights.odd);
    }
  }

  template <typename Choose>
  HWY_INLINE void AddSplit(const Distances& group, Choose choose) {
    for (uint32_t offset = 0; offset < law::kGroupSize; offset += kLanes) {
      const EvenOdd weights = weigher_.Weights(group.At(offset));
      all_.even = hn::Add(all_.even, weights.even);
      all_.odd = hn::Add(all_.odd, weights.odd);
      const V32 is_chosen = choose(offset);
      chosen_.even = hn::Add(chosen_.even, hn::And(weights.even, Wide(hn::DupEven(is_chosen))));
      chosen_.odd = hn::Add(chosen_.odd, hn::And(weights.odd, Wide(hn::DupOdd(is_chosen))));
    }
  }

  HWY_INLINE Sums End() const {
    return {SumOf(hn::Add(all_.even, all_.odd)), SumOf(hn::Add(chosen_.even, chosen_.odd))};
  }

 private:
  const Weigher weigher_;
  EvenOdd all_, chosen_;
};

#if SORTITION_X86_BITS == 256 || SORTITION_X86_BITS == 128
// Adds like the adder above, in doubles.
class DoubleAdder {
 public:
  using Distances = DoubleDistances;

  explicit HWY_INLINE DoubleAdder(const RowScale& row)
      : weigher_(row), all_(hn::Zero(D64())), chosen_(hn::Zero(D64())) {}

  HWY_INLINE void Measure(VF32 x, uint32_t offset, Distances* group) const {
    group->Put(weigher_.Distances(x), offset);
  }
  HWY_INLINE void MeasureKeys(V32 keys, uint32_t offset, Distances* group) const {
    Measure(weigher_.Numbers(keys), offset, group);
  }

  HWY_INLINE void Add(const Distances& group) {
    auto even = weigher_.origin();
    auto odd = weigher_.origin();
    for (uint32_t offset = 0; offset < law::kGroupSize; offset += kLanes) {
      const uint32_t* const t = group.t + offset;
      const auto curves = weigher_.CurvesOf(t);
      even = hn::MulAdd(weigher_.PowersOf(t), curves.even, even);
      odd = hn::MulAdd(weigher_.PowersOf(t + 1), curves.odd, odd);
    }
    all_ = hn::Add(all_, hn::Add(weigher_.WholeOf(even), weigher_.WholeOf(odd)));
  }

  template <typename Choose>
  HWY_INLINE void AddSplit(const Distances& group, Choose choose) {
    auto even = weigher_.origin();
    auto odd = weigher_.origin();
    auto chosen_even = weigher_.origin();
    auto chosen_odd = weigher_.origin();
    for (uint32_t offset = 0; offset < law::kGroupSize; offset += kLanes) {
      const uint32_t* const t = group.t + offset;
      const auto curves = weigher_.CurvesOf(t);
      const auto even_powers = weigher_.PowersOf(t);
      const auto odd_powers = weigher_.PowersOf(t + 1);
      even = hn::MulAdd(even_powers, curves.even, even);
      odd = hn::MulAdd(odd_powers, curves.odd, odd);
      const V32 is_chosen = choose(offset);
      const DoubleWeigher::DF64 d;
      const auto chosen_even_powers = hn::And(even_powers, hn::BitCast(d, hn::DupEven(is_chosen)));
      const auto chosen_odd_powers = hn::And(odd_powers, hn::BitCast(d, hn::DupOdd(is_chosen)));
      chosen_even = hn::MulAdd(chosen_even_powers, curves.even, chosen_even);
      chosen_odd = hn::MulAdd(chosen_odd_powers, curves.odd, chosen_odd);
    }
    all_ = hn::Add(all_, hn::Add(weigher_.WholeOf(even), weigher_.WholeOf(odd)));
    chosen_ = hn::Add(chosen_, hn::Add(weigher_.WholeOf(chosen_even), weigher_.WholeOf(chosen_odd)));
  }

  HWY_INLINE Sums End() {
    weigher_.End(&all_, &chosen_);
    return {SumOf(all_), SumOf(chosen_)};
  }

 private:
  const DoubleWeigher weigher_;
  V64 all_, chosen_;
};
#endif

// Weights near the law's, in floats: w / 2^44 ~ 2^-y, where y is the distance in octaves before the law cuts it.
//
// - The cuts of fixed point and of t move a distance by less than 2^-18 octaves (HasNearWeights), so a weight by
//   2^-18.5 of it. y has three roundings of 2^-24. At 45 octaves they are 2^-16.9 octaves, and 2^-17.4 of a weight.
// - The polynomial of degree 4 that is nearest to 2^-f for |f| <= 1/2 is off by 2^-18.5, its roundings included, and
//   the law's curve by 2^-23.2.
// - 64 sums of floats are off by 2^-18. Those of doubles are off by less than 2^-37.
//
// Together this is below kNearError = 2^-15, also where a processor does not round to nearest. A token that the law
// cuts to a whole unit, or that weighs nothing there and 2^-45 or less here, is off by less than kNearLoss = 2^-43.
class NearWeigher {
 public:
  explicit HWY_INLINE NearWeigher(const RowScale& row) {
    const DF32 df;
    const double octaves = std::ldexp(double(row.scale.multiplier) * row.to_fixed_point, -int(row.scale.shift) - 26);
    max_ = hn::Set(df, float(int32_t(row.scale.max)) / row.to_fixed_point);
    octaves_ = hn::Set(df, float(octaves));
    most_ = hn::Set(df, float(64 / octaves));
  }

  HWY_INLINE VF32 operator()(VF32 x) const {
    const D32 d;
    const DF32 df;
    const VF32 below = hn::Min(hn::Sub(max_, x), most_);
    // The lower bits of `shifted` hold the whole octaves.
    const VF32 magic = hn::Set(df, 0x1.8p23f);
    const VF32 shifted = hn::MulAdd(below, octaves_, magic);
    const VF32 f = hn::MulSub(below, octaves_, hn::Sub(shifted, magic));
    VF32 p = hn::Set(df, 0.009570005349814892f);
    for (const float c : {-0.05591868236660957f, 0.24024753272533417f, -0.6931217312812805f, 0.9999992847442627f}) {
      p = hn::MulAdd(p, f, hn::Set(df, c));
    }
    return Floats(hn::Sub(hn::BitCast(d, p), hn::ShiftLeft<23>(hn::BitCast(d, shifted))));
  }

  // Returns y. It is off by the cuts and roundings above, 2^-16.2 octaves.
  HWY_INLINE VF32 Octaves(VF32 x) const { return hn::Mul(hn::Min(hn::Sub(max_, x), most_), octaves_); }

 private:
  VF32 max_, octaves_, most_;
};

// Returns the sum of the lanes.
HWY_INLINE double SumInDoubles(VF32 v) {
  const hn::Repartition<double, D32> df64;
  const hn::Half<DF32> half;
  return hn::GetLane(hn::SumOfLanes(
      df64, hn::Add(hn::PromoteTo(df64, hn::LowerHalf(half, v)), hn::PromoteTo(df64, hn::UpperHalf(half, v)))));
}

// Calls add(&adder) with the adder that serves the row, and returns its sums.
template <typename Add>
HWY_INLINE Sums WithAdder(const RowScale& scale, Add add) {
#if SORTITION_X86_BITS == 256 || SORTITION_X86_BITS == 128
  if (DoubleWeigher::Serves(scale)) {
    DoubleAdder adder(scale);
    add(&adder);
    return adder.End();
  }
#endif
  return WithWeigher(scale, [&]<class Weigher>(const Weigher& weigher) HWY_ATTR {
    Adder<Weigher> adder(weigher);
    add(&adder);
    return adder.End();
  });
}

}  // namespace

uint64_t SumWeights(const RowView& row, const uint32_t* groups, uint32_t count, Candidate last, const RowScale& scale) {
  // True if tokens after `last` and masked tokens weigh nothing. Then a group needs no masking.
  const bool all = last.key() < scale.first_weighted_key && scale.first_weighted_key > kMaskedKey;
  return WithDType(row.dtype, [&]<DType kType>() HWY_ATTR {
    return WithAdder(scale, [&](auto* adder) HWY_ATTR { AddTokens<kType>(row, groups, count, last, all, adder); }).all;
  });
}

uint64_t SplitWeights(const RowView& row, const uint32_t* groups, uint32_t count, uint32_t floor, uint32_t high,
                      const RowScale& scale, uint64_t* above) {
  const DF32 df;
  const D32 d;
  const VF32 first = hn::Set(df, SentFrom(HWY_MAX(floor, scale.first_weighted_key)));
  const VF32 upper = hn::Set(df, SentFrom(high));
  const VF32 weightless = hn::Set(df, -std::numeric_limits<float>::infinity());
  const Sums sums = WithDType(row.dtype, [&]<DType kType>() HWY_ATTR {
    return WithAdder(scale, [&]<class Adder>(Adder* adder) HWY_ATTR {
      typename Adder::Distances distances[2];  // used in turn, as in AddTokens
      const auto add = [&](uint32_t i) HWY_ATTR {
        const std::byte* const elements = PlaceOfGroup(row, groups[i]);
        adder->AddSplit(distances[i % 2], [&](uint32_t offset) HWY_ATTR {
          // Tokens that do not count get weight 0, so any number may stand in their lanes.
          const VF32 x = Floats(LoadBits<kType>(elements + offset * ElementBytes(kType)));
          return hn::VecFromMask(d, hn::RebindMask(d, hn::Ge(x, upper)));
        });
      };
      for (uint32_t i = 0; i < count; ++i) {
        const uint32_t group = groups[i];
        const std::byte* const elements = ElementsOfGroup(row, group);
        const uint64_t sent = row.sent_words == nullptr ? ~uint64_t{0} : row.sent_words[group];
        for (uint32_t offset = 0; offset < law::kGroupSize; offset += kLanes) {
          const VF32 x = Floats(LoadBits<kType>(elements + offset * ElementBytes(kType)));
          const auto shown = hn::RebindMask(df, MaskOf(uint32_t(sent >> offset)));
          const VF32 counted = hn::IfThenElse(hn::And(shown, hn::Ge(x, first)), x, weightless);
          adder->Measure(counted, offset, &distances[i % 2]);
        }
        if (i > 0) add(i - 1);
      }
      if (count > 0) add(count - 1);
    });
  });
  *above = sums.chosen;
  return sums.all;
}

NearSums NearWeights(const RowView& row, const uint32_t* groups, uint32_t count, Candidate end, const RowScale& scale) {
  constexpr uint32_t kGroupsAtOnce = 4;
  const DF32 df;
  const NearWeigher weigher(scale);
  const uint32_t end_group = end.token() / law::kGroupSize;
  // The smallest number before `end`: of tokens with a smaller id, and of others.
  const VF32 with_ties = hn::Set(df, SentFrom(end.key()));
  const VF32 without_ties = hn::Set(df, SentFrom(end.key() + 1));
  const VF32 weightless = hn::Set(df, -std::numeric_limits<float>::infinity());
  return WithDType(row.dtype, [&]<DType kType>() HWY_ATTR {
    NearSums sums = {};
    for (uint32_t first = 0; first < count; first += kGroupsAtOnce) {
      VF32 all = hn::Zero(df);
      VF32 before = all;
      for (uint32_t i = first; i < HWY_MIN(first + kGroupsAtOnce, count); ++i) {
        const uint32_t group = groups[i];
        const std::byte* const elements = ElementsOfGroup(row, group);
        const uint64_t sent = row.sent_words == nullptr ? ~uint64_t{0} : row.sent_words[group];
        VF32 least = group < end_group ? with_ties : without_ties;
        for (uint32_t offset = 0; offset < law::kGroupSize; offset += kLanes) {
          VF32 x = Floats(LoadBits<kType>(elements + offset * ElementBytes(kType)));
          if (HWY_UNLIKELY(group == end_group)) {
            const uint32_t ties = HWY_MAX(end.token() % law::kGroupSize, offset) - offset;
            least = hn::IfThenElse(hn::FirstN(df, ties), with_ties, without_ties);
          }
          const auto is_before = hn::Ge(x, least);
          if (sent != ~uint64_t{0})
            x = hn::IfThenElse(hn::RebindMask(df, MaskOf(uint32_t(sent >> offset))), x, weightless);
          const VF32 weights = weigher(x);
          all = hn::Add(all, weights);
          before = hn::Add(before, hn::IfThenElseZero(is_before, weights));
        }
      }
      sums.all += SumInDoubles(all);
      sums.before += SumInDoubles(before);
    }
    return sums;
  });
}

namespace {

enum class NearOther { kNone, kMoment, kSquare };

// Adds near moments: up to 64 numbers a lane between two calls of Flush.
template <NearOther kOther>
class NearAdder {
 public:
  explicit HWY_INLINE NearAdder(const RowScale& scale) : weigher_(scale), sum_(hn::Zero(DF32())), other_(sum_) {}

  HWY_INLINE void Add(VF32 x) {
    const VF32 weights = weigher_(x);
    sum_ = hn::Add(sum_, weights);
    if constexpr (kOther == NearOther::kMoment) other_ = hn::MulAdd(weights, weigher_.Octaves(x), other_);
    if constexpr (kOther == NearOther::kSquare) other_ = hn::MulAdd(weights, weights, other_);
  }

  HWY_INLINE void Flush(NearMomentSums* sums) {
    sums->sum += SumInDoubles(sum_);
    sum_ = hn::Zero(DF32());
    if constexpr (kOther == NearOther::kNone) return;
    sums->other += SumInDoubles(other_);
    other_ = hn::Zero(DF32());
  }

 private:
  const NearWeigher weigher_;
  VF32 sum_, other_;
};

// Calls add(adder, &sums) with the adder of what is wanted, and returns the sums.
template <typename Add>
HWY_INLINE NearMomentSums WithNearAdder(MomentsWanted wanted, const RowScale& scale, Add add) {
  NearMomentSums sums;
  switch (wanted) {
    case MomentsWanted::kSum:
      add(NearAdder<NearOther::kNone>(scale), &sums);
      break;
    case MomentsWanted::kMoment:
    case MomentsWanted::kMomentAndCount:
      add(NearAdder<NearOther::kMoment>(scale), &sums);
      break;
    case MomentsWanted::kSquare:
      add(NearAdder<NearOther::kSquare>(scale), &sums);
      break;
  }
  return sums;
}

}  // namespace

NearMomentSums NearMoments(const RowView& row, const uint32_t* groups, uint32_t count, const RowScale& scale,
                           MomentsWanted wanted) {
  constexpr uint32_t kGroupsAtOnce = 4;
  const VF32 weightless = hn::Set(DF32(), -std::numeric_limits<float>::infinity());
  return WithDType(row.dtype, [&]<DType kType>() HWY_ATTR {
    return WithNearAdder(wanted, scale, [&](auto adder, NearMomentSums* sums) HWY_ATTR {
      for (uint32_t i = 0; i < count; ++i) {
        const std::byte* const elements = ElementsOfGroup(row, groups[i]);
        const uint64_t sent = row.sent_words == nullptr ? ~uint64_t{0} : row.sent_words[groups[i]];
        for (uint32_t offset = 0; offset < law::kGroupSize; offset += kLanes) {
          VF32 x = Floats(LoadBits<kType>(elements + offset * ElementBytes(kType)));
          if (sent != ~uint64_t{0})
            x = hn::IfThenElse(hn::RebindMask(DF32(), MaskOf(uint32_t(sent >> offset))), x, weightless);
          adder.Add(x);
        }
        if (i % kGroupsAtOnce == kGroupsAtOnce - 1) adder.Flush(sums);
      }
      adder.Flush(sums);
    });
  });
}

NearMomentSums NearMomentsOfKeys(const uint32_t* keys, uint32_t count, uint32_t level, const RowScale& scale,
                                 MomentsWanted wanted) {
  const D32 d;
  const V32 end = hn::Set(d, level);
  return WithNearAdder(wanted, scale, [&](auto adder, NearMomentSums* sums) HWY_ATTR {
    for (uint32_t first = 0; first < count; first += 64) {
      for (uint32_t i = first; i < first + 64; i += kLanes) {
        const V32 key = hn::LoadU(d, keys + i);
        adder.Add(Floats(KeyBits(hn::Max(hn::IfThenElseZero(hn::Lt(key, end), key), hn::Set(d, kMaskedKey)))));
      }
      if (first % 256 == 192) adder.Flush(sums);
    }
    adder.Flush(sums);
  });
}

uint64_t WeighCandidates(const Candidate* candidates, uint32_t count, const RowScale& row, uint64_t* weights) {
  const D32 d;
  const D64 d64;
  const Weigher weigher(row);
  uint64_t sum = 0;
  for (uint32_t i = 0; i < count; i += kLanes) {
    const auto* const ranks = reinterpret_cast<const uint64_t*>(candidates + i);
    const V32 loaded = hn::ConcatOdd(d, Narrow(hn::LoadU(d64, ranks + kLanes / 2)), Narrow(hn::LoadU(d64, ranks)));
    const V32 keys = hn::IfThenElseZero(hn::FirstN(d, count - i), loaded);  // zeros the lanes behind the list
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
