// The pass over the logits that every row pays: group maxima, and the check of the domain.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/read.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
//
#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/law.inc"
//
#include "kernels/cpu/simd/load.inc"
//
#include "kernels/cpu/simd/readers.inc"
//
#include "kernels/cpu/simd/read.inc"

HWY_BEFORE_NAMESPACE();
namespace sortition::kernels::cpu::HWY_NAMESPACE {

namespace {

// Step() passes the f32 bits of the maxima of kStep groups to keep(i, bits), a vector for groups i, i + 1, ....
//
// (Constructors are spelt out: implicit ones would not be compiled for the target.)
struct Reader32 {
  static constexpr uint32_t kStep = kStepOf<Floats32>;
  static constexpr bool kSums = false;

  HWY_INLINE Reader32() {}

  template <typename Keep>
  HWY_INLINE void Step(const std::byte* elements, Keep keep) {
    keep(0, hn::BitCast(D32(), ConsecutiveGroups(elements, &floats)));
  }
  HWY_INLINE void Look(const std::byte* elements) { floats.LoadGroup(elements, 0); }
  HWY_INLINE bool FoundNan() const { return floats.FoundNan(); }

  Floats32 floats;
};

// Not inlined, because it is seldom needed and would take registers from code that always runs.
HWY_NOINLINE Negative16::V MaximaOfNegatives(const std::byte* elements) {
  Negative16 negatives;
  return ConsecutiveGroups(elements, &negatives);
}

template <DType kType>
struct Reader16 {
  static constexpr uint32_t kStep = kStepOf<Positive16>;
  static constexpr bool kSums = false;

  HWY_INLINE Reader16() : positive(kType == DType::kF16 ? 0xfc00 : 0xff80) {}

  template <typename Keep>
  HWY_INLINE void Step(const std::byte* elements, Keep keep) {
    using D = Positive16::D;
    const D d;
    auto maxima = ConsecutiveGroups(elements, &positive);
    const auto negative = hn::Lt(maxima, hn::Zero(d));
    if (HWY_UNLIKELY(!hn::AllFalse(d, negative))) {
      maxima = hn::IfThenElse(negative, hn::BitCast(d, MaximaOfNegatives(elements)), maxima);
    }
    alignas(64) int16_t halves[kStep];
    hn::Store(maxima, d, halves);
    for (uint32_t i = 0; i < kStep; i += kLanes) {
      keep(i, LoadBits<kType>(reinterpret_cast<const std::byte*>(halves + i)));
    }
  }
  HWY_INLINE void Look(const std::byte* elements) { positive.LoadGroup(elements, 0); }
  HWY_INLINE bool FoundNan() const { return positive.FoundNan(); }

  Positive16 positive;
};

// Returns, lane by lane, the largest of a group's sent logits that still show, as f32.
template <DType kType>
HWY_INLINE VF32 LoadSent(const RowView& row, uint32_t group) {
  const std::byte* const elements = ElementsOfGroup(row, group);
  const uint64_t sent = row.sent_words == nullptr ? ~uint64_t{0} : row.sent_words[group];
  const VF32 masked = Floats(hn::Set(D32(), law::kMaskedBits));
  VF32 max = masked;
  for (uint32_t i = 0; i < law::kGroupSize; i += kLanes) {
    const VF32 x = Floats(LoadBits<kType>(elements + i * ElementBytes(kType)));
    max = hn::Max(max, hn::IfThenElse(hn::RebindMask(DF32(), MaskOf(uint32_t(sent >> i))), x, masked));
  }
  return max;
}

// Returns LoadSent of the first kLanes listed groups. Prefetches the group kLanes places ahead. Behind the list's end
// stands its first group again.
template <DType kType>
struct ListedLoads {
  HWY_INLINE ListedLoads(const RowView& of, const uint32_t* list, uint32_t number)
      : row(of), groups(list), count(number) {}
  HWY_INLINE VF32 operator()(size_t lane) const {
    constexpr size_t kGroupBytes = law::kGroupSize * ElementBytes(kType);
    if (lane + kLanes < count) {
      const std::byte* const later = row.elements + groups[lane + kLanes] * kGroupBytes;
      for (size_t line = 0; line < kGroupBytes; line += 64) Prefetch(later + line);
    }
    return LoadSent<kType>(row, groups[lane < count ? lane : 0]);
  }

  const RowView& row;
  const uint32_t* groups;
  uint32_t count;
};

}  // namespace

void LargestSentKeys(const RowView& row, const uint32_t* groups, uint32_t count, uint32_t* keys) {
  WithDType(row.dtype, [&]<DType kType>() HWY_ATTR {
    for (uint32_t i = 0; i < count; i += kLanes) {
      const VF32 maxima = WholeGroups<1, Floats32>(ListedLoads<kType>(row, groups + i, count - i));
      hn::StoreU(KeyOf(hn::BitCast(D32(), maxima)), D32(), keys + i);
    }
  });
}

void CopyGroup(const RowView& row, uint32_t group) {
  LazyCopy& lazy = *row.lazy;
  WithDType(row.dtype, [&]<DType kType>() HWY_ATTR {
    constexpr size_t kBytes = law::kGroupSize * ElementBytes(kType);
    const size_t begin = group * kBytes;
    lazy.copier.Copy(begin, kBytes);
    lazy.Mark(group);
    std::byte* const copy = lazy.copier.to() + begin;
    const uint32_t key = lazy.maxima[group];
    if (HasNan<kType>(copy) || LargestKey<kType>(copy) != key) ReplaceChanged(kType, key, copy, &lazy);
  });
}

Reading ReadMaxima(const RowView& row, uint32_t* maxima) {
  return WithDType(row.dtype, [&]<DType kType>() HWY_ATTR {
    if constexpr (kType != DType::kF16) {
      if (row.sums_logits && row.lazy == nullptr) return ReadMaximaAndSums<kType>(row, maxima);
    }
    return ReadMaximaBy<kType, std::conditional_t<kType == DType::kF32, Reader32, Reader16<kType>>>(row, maxima);
  });
}

}  // namespace sortition::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
