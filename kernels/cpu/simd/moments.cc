// Sums over kept tokens for the filters of a chain.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/moments.cc"
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

// The sums that are wanted besides the sum of weights.
struct Wants {
  bool moment, square, count;
};
constexpr Wants WantsOf(MomentsWanted wanted) {
  return {wanted == MomentsWanted::kMoment || wanted == MomentsWanted::kMomentAndCount,
          wanted == MomentsWanted::kSquare, wanted == MomentsWanted::kMomentAndCount};
}

template <MomentsWanted kWanted>
HWY_INLINE Moments MomentsOf(uint64_t sum, uint64_t other, uint32_t count) {
  constexpr Wants kWants = WantsOf(kWanted);
  return {.sum = sum, .moment = kWants.moment ? other : 0, .square = kWants.square ? other : 0, .count = count};
}

// Returns the number of live tokens, without those that are left out.
HWY_INLINE uint32_t LiveIn(VF32 x) { return uint32_t(hn::CountTrue(DF32(), hn::Gt(x, hn::Set(DF32(), -65504.0f)))); }
HWY_INLINE uint32_t LiveIn(V32 keys) { return uint32_t(hn::CountTrue(D32(), hn::Ne(keys, hn::Zero(D32())))); }

template <MomentsWanted kWanted, class Weigher>
class Adder {
 public:
  using Distances = GroupDistances;

  explicit HWY_INLINE Adder(const Weigher& weigher)
      : weigher_(weigher), sums_(hn::Zero(D64()), hn::Zero(D64())), others_(sums_) {}

  // Takes numbers, none above the row's largest. Numbers too small to have a weight add nothing.
  HWY_INLINE void Measure(VF32 x, uint32_t offset, Distances* group) {
    if constexpr (kWants.count) count_ += LiveIn(x);
    group->Put(DistancesOf(x), offset);
  }

  // Takes keys, 0 for tokens to leave out.
  HWY_INLINE void MeasureKeys(V32 keys, uint32_t offset, Distances* group) {
    if constexpr (kWants.count) count_ += LiveIn(keys);
    group->Put(DistancesOf(weigher_.Numbers(keys)), offset);
  }

  HWY_INLINE void Add(const Distances& group) {
    for (uint32_t offset = 0; offset < law::kGroupSize; offset += kLanes) AddVector(group.At(offset));
  }

  HWY_INLINE void AddKeys(V32 keys) { AddVector(DistancesOf(weigher_.Numbers(keys))); }

  HWY_INLINE Moments End() const {
    return MomentsOf<kWanted>(SumOf(hn::Add(sums_.even, sums_.odd)), SumOf(hn::Add(others_.even, others_.odd)), count_);
  }

 private:
  static constexpr Wants kWants = WantsOf(kWanted);

  HWY_INLINE EvenOdd DistancesOf(VF32 x) const {
    return kWants.moment ? weigher_.DistancesForMoments(x) : weigher_.Distances(x);
  }

  HWY_INLINE void AddVector(EvenOdd t) {
    EvenOdd mantissas, shifts;
    weigher_.Mantissas(t, &mantissas, &shifts);
    const EvenOdd factors = Weigher::Factors(t, shifts);
    AddHalf(factors.even, mantissas.even, shifts.even, &sums_.even, &others_.even);
    AddHalf(factors.odd, mantissas.odd, shifts.odd, &sums_.odd, &others_.odd);
  }

  static HWY_INLINE void AddHalf(V64 factors, V64 mantissas, V64 shifts, V64* sum, V64* other) {
    const V64 weights = hn::Shr(mantissas, shifts);
    *sum = hn::Add(*sum, weights);
    if constexpr (kWants.moment) {
      const V64 product = hn::MulEven(Narrow(hn::ShiftRight<28>(mantissas)), Narrow(factors));
      *other = hn::Add(*other, hn::Shr(product, shifts));
    }
    if constexpr (kWants.square) {
      const V32 w = Narrow(hn::ShiftRight<13>(weights));
      *other = hn::Add(*other, hn::ShiftRight<20>(hn::MulEven(w, w)));
    }
  }

  const Weigher weigher_;
  EvenOdd sums_, others_;
  uint32_t count_ = 0;
};

#if SORTITION_X86_BITS == 256 || SORTITION_X86_BITS == 128
// Adds like the adder above, in doubles.
template <MomentsWanted kWanted>
class DoubleAdder {
 public:
  using Distances = DoubleDistances;

  explicit HWY_INLINE DoubleAdder(const RowScale& row)
      : weigher_(row), sums_(hn::Zero(D64())), others_(hn::Zero(D64())) {}

  HWY_INLINE void Measure(VF32 x, uint32_t offset, Distances* group) {
    if constexpr (kWants.count) count_ += LiveIn(x);
    group->Put(weigher_.Distances(x), offset);
  }
  HWY_INLINE void MeasureKeys(V32 keys, uint32_t offset, Distances* group) {
    if constexpr (kWants.count) count_ += LiveIn(keys);
    group->Put(weigher_.Distances(weigher_.Numbers(keys)), offset);
  }

  HWY_INLINE void Add(const Distances& group) {
    auto even_sum = weigher_.origin();
    auto odd_sum = weigher_.origin();
    auto even_other = weigher_.origin();
    auto odd_other = weigher_.origin();
    for (uint32_t offset = 0; offset < law::kGroupSize; offset += kLanes) {
      const uint32_t* const t = group.t + offset;
      const V32 lanes = hn::Load(D32(), t);
      const auto curves = weigher_.CurvesOf(t);
      AddHalf(lanes, hn::Mul(weigher_.PowersOf(t), curves.even), &even_sum, &even_other);
      AddHalf(OddToEven(lanes), hn::Mul(weigher_.PowersOf(t + 1), curves.odd), &odd_sum, &odd_other);
    }
    sums_ = hn::Add(sums_, hn::Add(weigher_.WholeOf(even_sum), weigher_.WholeOf(odd_sum)));
    others_ = hn::Add(others_, hn::Add(weigher_.WholeOf(even_other), weigher_.WholeOf(odd_other)));
  }

  HWY_INLINE Moments End() {
    weigher_.End(&sums_, &others_);
    return MomentsOf<kWanted>(SumOf(sums_), SumOf(others_), count_);
  }

 private:
  using DF64 = DoubleWeigher::DF64;
  using VF64 = DoubleWeigher::VF64;
  static constexpr Wants kWants = WantsOf(kWanted);

  // Takes t in the even lanes, and weights before they are rounded down.
  HWY_INLINE void AddHalf(V32 t, VF64 weights, VF64* sum, VF64* other) const {
    const DF64 d;
    *sum = hn::Add(*sum, weights);
    if constexpr (kWants.moment) {
      // A mantissa's upper 31 bits, shifted down as the weight is. The mantissa of a weight above 0 lies in [2^58,
      // 2^59).
      const VF64 mantissa = hn::And(weights, hn::BitCast(d, hn::Set(D64(), ~uint64_t{0} << 22)));
      // 2^-28 t, from the bits of 2^24 + 2^-28 t.
      const VF64 shifted = hn::BitCast(d, hn::OddEven(hn::Set(D32(), (1023u + 24u) << 20), t));
      *other = hn::MulAdd(mantissa, hn::Sub(shifted, hn::Set(d, 0x1p24)), *other);
    }
    if constexpr (kWants.square) {
      const VF64 w = hn::Sub(hn::MulAdd(weights, hn::Set(d, 0x1p-13), weigher_.origin()), weigher_.origin());
      *other = hn::MulAdd(hn::Mul(w, hn::Set(d, 0x1p-20)), w, *other);
    }
  }

  const DoubleWeigher weigher_;
  V64 sums_, others_;
  uint32_t count_ = 0;
};
#endif

template <MomentsWanted kWanted>
HWY_INLINE Moments OfRow(const RowView& row, const uint32_t* groups, uint32_t count, Candidate last,
                         const RowScale& scale) {
  // True if tokens after `last` and masked tokens add nothing. Then a group needs no masking.
  const bool all =
      scale.first_weighted_key > kMaskedKey &&
      (kWanted == MomentsWanted::kMomentAndCount ? last == kLastLive : last.key() < scale.first_weighted_key);
  return WithDType(row.dtype, [&]<DType kType>() HWY_ATTR {
    const auto sum = [&](auto adder) HWY_ATTR {
      AddTokens<kType>(row, groups, count, last, all, &adder);
      return adder.End();
    };
#if SORTITION_X86_BITS == 256 || SORTITION_X86_BITS == 128
    if (DoubleWeigher::Serves(scale)) return sum(DoubleAdder<kWanted>(scale));
#endif
    return WithWeigher(
        scale, [&]<class Weigher>(const Weigher& weigher) HWY_ATTR { return sum(Adder<kWanted, Weigher>(weigher)); });
  });
}

template <MomentsWanted kWanted>
HWY_INLINE Moments OfCandidates(const Candidate* candidates, uint32_t count, const RowScale& scale) {
  const D32 d;
  const D64 d64;
  Adder<kWanted, Weigher> adder{Weigher(scale)};
  for (uint32_t i = 0; i < count; i += kLanes) {
    const auto* const ranks = reinterpret_cast<const uint64_t*>(candidates + i);
    const V32 loaded = hn::ConcatOdd(d, Narrow(hn::LoadU(d64, ranks + kLanes / 2)), Narrow(hn::LoadU(d64, ranks)));
    adder.AddKeys(hn::IfThenElseZero(hn::FirstN(d, count - i), loaded));
  }
  return adder.End();
}

}  // namespace

Moments SumMoments(const RowView& row, const uint32_t* groups, uint32_t count, Candidate last, const RowScale& scale,
                   MomentsWanted wanted) {
  switch (wanted) {
    case MomentsWanted::kSum:
      return OfRow<MomentsWanted::kSum>(row, groups, count, last, scale);
    case MomentsWanted::kMoment:
      return OfRow<MomentsWanted::kMoment>(row, groups, count, last, scale);
    case MomentsWanted::kMomentAndCount:
      return OfRow<MomentsWanted::kMomentAndCount>(row, groups, count, last, scale);
    case MomentsWanted::kSquare:
      return OfRow<MomentsWanted::kSquare>(row, groups, count, last, scale);
  }
  __builtin_unreachable();
}

Moments SumMomentsOfCandidates(const Candidate* candidates, uint32_t count, const RowScale& scale,
                               MomentsWanted wanted) {
  switch (wanted) {
    case MomentsWanted::kSum:
      return OfCandidates<MomentsWanted::kSum>(candidates, count, scale);
    case MomentsWanted::kMoment:
    case MomentsWanted::kMomentAndCount:
      return OfCandidates<MomentsWanted::kMoment>(candidates, count, scale);
    case MomentsWanted::kSquare:
      return OfCandidates<MomentsWanted::kSquare>(candidates, count, scale);
  }
  __builtin_unreachable();
}

namespace {

// Adds levels of numbers.
class LevelAdder {
 public:
  explicit HWY_INLINE LevelAdder(const RowScale& row)
      : curve_(row.curve),
        to_level_(hn::Set(DF32(), row.to_fixed_point * 0x1p-10f)),
        lowest_(hn::Set(DF32(), -0x1p21f)),
        sum_(hn::Zero(DI32())),
        even_squares_(hn::Zero(hn::RebindToSigned<D64>())),
        odd_squares_(even_squares_) {}

  HWY_INLINE VI32 LevelOf(VF32 x) const {
    if (HWY_UNLIKELY(curve_.is_on)) x = Curved(x, curve_);
    return Nearest(hn::Max(hn::Mul(x, to_level_), lowest_));
  }

  HWY_INLINE void Add(VI32 level) {
    sum_ = hn::Add(sum_, level);
    const VI32 odd = Signed(OddToEven(Unsigned(level)));
    even_squares_ = hn::Add(even_squares_, hn::MulEven(level, level));
    odd_squares_ = hn::Add(odd_squares_, hn::MulEven(odd, odd));
  }

  // Called after at most 2^9 additions: moves the 32-bit sums to a 64-bit one.
  HWY_INLINE void Flush(Levels* levels) {
    alignas(64) int32_t lanes[kLanes];
    hn::Store(sum_, DI32(), lanes);
    for (const int32_t lane : lanes) levels->sum += lane;
    sum_ = hn::Zero(DI32());
  }

  HWY_INLINE uint64_t Squares() const { return SumOf(hn::BitCast(D64(), hn::Add(even_squares_, odd_squares_))); }

 private:
  const CurveFloats curve_;
  VF32 to_level_, lowest_;
  VI32 sum_;
  hn::Vec<hn::RebindToSigned<D64>> even_squares_, odd_squares_;
};

}  // namespace

Levels SumLevels(const RowView& row, const uint32_t* groups, uint32_t count, Candidate last, const RowScale& scale) {
  const D32 d;
  const DF32 df;
  const bool all = last == kLastLive;
  constexpr uint32_t kVectors = law::kGroupSize / kLanes;
  return WithDType(row.dtype, [&]<DType kType>() HWY_ATTR {
    Levels levels;
    LevelAdder adder(scale);
    uint32_t added = 0;
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t group = groups[i];
      const std::byte* const elements = ElementsOfGroup(row, group);
      // Reads a group as it is if every token counts.
      bool is_whole = all && (row.sent_words == nullptr || row.sent_words[group] == ~uint64_t{0});
      if (is_whole) {
        VF32 least = hn::Zero(df);
        for (uint32_t v = 0; v < kVectors; ++v) {
          least = hn::Min(least, Floats(LoadBits<kType>(elements + v * kLanes * ElementBytes(kType))));
        }
        is_whole = hn::AllTrue(df, hn::Gt(least, hn::Set(df, -65504.0f)));
      }
      if (is_whole) {
        for (uint32_t v = 0; v < kVectors; ++v) {
          adder.Add(adder.LevelOf(Floats(LoadBits<kType>(elements + v * kLanes * ElementBytes(kType)))));
        }
        levels.count += law::kGroupSize;
      } else {
        ForKeysOfGroup<kType>(row, group, [&](uint32_t offset, V32 keys) HWY_ATTR {
          const M32 kept = hn::And(NotAfter(keys, group * law::kGroupSize + offset, last), hn::Ne(keys, hn::Zero(d)));
          const VI32 level = adder.LevelOf(Floats(KeyBits(hn::Max(keys, hn::Set(d, kMaskedKey)))));
          adder.Add(hn::IfThenElseZero(hn::RebindMask(DI32(), kept), level));
          levels.count += uint32_t(hn::CountTrue(d, kept));
        });
      }
      if ((added += kVectors) + kVectors <= 512) continue;
      adder.Flush(&levels);
      added = 0;
    }
    adder.Flush(&levels);
    levels.squares = adder.Squares();
    return levels;
  });
}

}  // namespace sortition::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
