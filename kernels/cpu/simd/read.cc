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

HWY_BEFORE_NAMESPACE();
namespace sortition::kernels::cpu::HWY_NAMESPACE {

namespace {

// Lane i of each run of kGroups lanes stands for a part of group first + i, of which load(group) gives a vector;
// kGroups lanes fill at most a block of 128 bits.
template <size_t kGroups, class Reader, typename Load>
HWY_INLINE typename Reader::V PartsOfGroups(size_t first, Load load) {
  if constexpr (kGroups == 1) {
    return load(first);
  } else {
    constexpr size_t kHalf = kGroups / 2;
    const auto a = PartsOfGroups<kHalf, Reader>(first, load);
    const auto b = PartsOfGroups<kHalf, Reader>(first + kHalf, load);
    const typename Reader::D d;
    const hn::Repartition<hwy::UnsignedFromSize<kHalf * Reader::kBytes>, typename Reader::D> runs;
    const auto ra = hn::BitCast(runs, a);
    const auto rb = hn::BitCast(runs, b);
    return Reader::Larger(hn::BitCast(d, hn::InterleaveLower(runs, ra, rb)),
                          hn::BitCast(d, hn::InterleaveUpper(runs, ra, rb)));
  }
}

// Lane i stands for the whole of group i.
template <class Reader, typename Load>
HWY_INLINE typename Reader::V WholeGroups(Load load) {
  const typename Reader::D d;
  constexpr size_t kBlock = 16 / Reader::kBytes;  // lanes, and groups, of 128 bits
  constexpr size_t kBlocks = hn::MaxLanes(d) / kBlock;
  static_assert(kBlocks == 1 || kBlocks == 2 || kBlocks == 4);
  // Block by block, by name: what a loop makes lies in memory.
  const auto a = PartsOfGroups<kBlock, Reader>(0, load);
  if constexpr (kBlocks == 1) {
    return a;
  } else if constexpr (kBlocks == 2) {
    const auto b = PartsOfGroups<kBlock, Reader>(kBlock, load);
    return Reader::Larger(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a));
  } else {
    const auto b = PartsOfGroups<kBlock, Reader>(kBlock, load);
    const auto c = PartsOfGroups<kBlock, Reader>(2 * kBlock, load);
    const auto e = PartsOfGroups<kBlock, Reader>(3 * kBlock, load);
    const auto ac = Reader::Larger(hn::ConcatLowerLower(d, c, a), hn::ConcatUpperUpper(d, c, a));  // blocks a a c c
    const auto be = Reader::Larger(hn::ConcatLowerLower(d, e, b), hn::ConcatUpperUpper(d, e, b));  // blocks b b e e
    return Reader::Larger(hn::OddEvenBlocks(be, ac),
                          hn::OddEvenBlocks(hn::SwapAdjacentBlocks(be), hn::SwapAdjacentBlocks(ac)));
  }
}

// The same for consecutive groups, the first of which lies at `elements`. (A lambda would not always be inlined.)
template <class Reader>
struct ConsecutiveLoads {
  HWY_INLINE ConsecutiveLoads(const std::byte* first, Reader* by) : elements(first), reader(by) {}
  HWY_INLINE typename Reader::V operator()(size_t group) const {
    constexpr size_t kGroupBytes = law::kGroupSize * Reader::kBytes;
    const std::byte* const at = elements + group * kGroupBytes;
    for (size_t line = 0; line < kGroupBytes; line += 64) Prefetch(at + kPrefetchBytes + line);
    return reader->LoadGroup(at, group);
  }

  const std::byte* elements;
  Reader* reader;
};

// So many groups a step, of at most 2 KB: a processor that sees a load's addresses advance in larger steps does not
// fetch ahead for it.
template <class Reader>
constexpr uint32_t kStepOf = hn::MaxLanes(typename Reader::D()) / (hn::MaxLanes(D32()) > 8 ? 2 : 1);

// The first kStepOf lanes stand for one group each.
template <class Reader>
HWY_INLINE typename Reader::V ConsecutiveGroups(const std::byte* elements, Reader* reader) {
  const ConsecutiveLoads<Reader> load(elements, reader);
#if SORTITION_X86_BITS == 512
  using V = typename Reader::V;
  const typename Reader::D d;
  constexpr size_t kBlock = 16 / Reader::kBytes;
  const V a = PartsOfGroups<kBlock, Reader>(0, load);
  const V b = PartsOfGroups<kBlock, Reader>(kBlock, load);
  const V parts = Reader::Larger(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a));  // blocks a a b b
  const V32 whole = hn::BitCast(D32(), Reader::Larger(parts, hn::SwapAdjacentBlocks(parts)));
  return hn::BitCast(d, V32{_mm512_shuffle_i32x4(whole.raw, whole.raw, 0b1000)});
#else
  return WholeGroups<Reader>(load);
#endif
}

// Step() writes f32 bits of the largest of each of kStep groups.
//
// (Constructors are spelt out: implicit ones would not be compiled for the target.)
struct Reader32 {
  static constexpr uint32_t kStep = kStepOf<Floats32>;

  HWY_INLINE Reader32() {}

  HWY_INLINE void Step(const std::byte* elements, uint32_t* bits) {
    const V32 maxima = hn::BitCast(D32(), ConsecutiveGroups(elements, &floats));
    if constexpr (kStep == kLanes) {
      hn::StoreU(maxima, D32(), bits);
    } else {
      const hn::Half<D32> half;
      hn::StoreU(hn::LowerHalf(half, maxima), half, bits);
    }
  }
  HWY_INLINE void Look(const std::byte* elements) { floats.LoadGroup(elements, 0); }
  bool FoundNan() const { return floats.FoundNan(); }

  Floats32 floats;
};

// Elsewhere, for it is seldom needed: in its place it would keep from registers what is always needed.
HWY_NOINLINE Negative16::V MaximaOfNegatives(const std::byte* elements) {
  Negative16 negatives;
  return ConsecutiveGroups(elements, &negatives);
}

template <DType kType>
struct Reader16 {
  static constexpr uint32_t kStep = kStepOf<Positive16>;

  HWY_INLINE Reader16() : positive(kType == DType::kF16 ? 0xfc00 : 0xff80) {}

  HWY_INLINE void Step(const std::byte* elements, uint32_t* bits) {
    using D = Positive16::D;
    const D d;
    auto maxima = ConsecutiveGroups(elements, &positive);
    const auto negative = hn::Lt(maxima, hn::Zero(d));  // of lanes behind the step's too, which are lanes of its groups
    if (HWY_UNLIKELY(!hn::AllFalse(d, negative))) {
      maxima = hn::IfThenElse(negative, hn::BitCast(d, MaximaOfNegatives(elements)), maxima);
    }
    alignas(64) int16_t halves[hn::MaxLanes(d)];
    hn::Store(maxima, d, halves);
    for (uint32_t i = 0; i < kStep; i += kLanes) {
      hn::StoreU(LoadBits<kType>(reinterpret_cast<const std::byte*>(halves + i)), D32(), bits + i);
    }
  }
  HWY_INLINE void Look(const std::byte* elements) { positive.LoadGroup(elements, 0); }
  bool FoundNan() const { return positive.FoundNan(); }

  Positive16 positive;
};

// Bits to keys, `count` of them; returns the largest.
HWY_INLINE uint32_t MakeKeys(uint32_t* bits, uint32_t count) {
  const D32 d;
  V32 max = hn::Zero(d);
  for (uint32_t i = 0; i < count; i += kLanes) {
    const V32 keys = KeyOf(hn::LoadU(d, bits + i));
    hn::StoreU(keys, d, bits + i);
    max = hn::Max(max, keys);
  }
  return hn::GetLane(hn::MaxOfLanes(d, max));
}

// Asks for the lines of some bytes, evenly over a number of steps.
class Ahead {
 public:
  HWY_INLINE Ahead(std::span<const std::byte> bytes, size_t steps)
      : at_(bytes.data()), end_(bytes.data() + bytes.size()), lines_a_step_(bytes.size() / 64 / (steps + 1) + 1) {}

  HWY_INLINE void Step() {
    for (size_t i = 0; i < lines_a_step_ && at_ < end_; ++i, at_ += 64) Prefetch(at_);
  }

 private:
  const std::byte* at_;
  const std::byte* const end_;
  const size_t lines_a_step_;
};

// The groups of a row before its maxima are known.
class UnreadGroups {
 public:
  HWY_INLINE UnreadGroups(const Row& row, size_t group_bytes)
      : elements_(row.elements),
        group_bytes_(group_bytes),
        is_far_(!row.copy.segments.empty()),
        is_copied_(row.copy.to != nullptr && row.lazy == nullptr),
        copier_(row.copy) {}

  // Where so many groups lie in one piece.
  HWY_INLINE const std::byte* At(uint32_t group, uint32_t count) {
    const size_t begin = group * group_bytes_;
    return HWY_UNLIKELY(is_far_) ? FarAt(begin, count * group_bytes_) : elements_ + begin;
  }

 private:
  HWY_INLINE const std::byte* FarAt(size_t begin, size_t bytes) {
    if (is_copied_) {
      Fetch(begin, bytes, &copier_);
      return elements_ + begin;
    }
    const std::byte* const at = copier_.InOnePiece(begin, bytes);
    PrefetchFar(at, bytes);
    return at;
  }

  const std::byte* const elements_;
  const size_t group_bytes_;
  const bool is_far_, is_copied_;
  RowCopier copier_;
};

template <DType kType>
HWY_INLINE Reading ReadMaximaAs(const Row& row, uint32_t* maxima) {
  constexpr size_t kGroupBytes = law::kGroupSize * ElementBytes(kType);
  const uint32_t groups = row.groups;
  const uint32_t in_place = GroupsInPlace(row);

  std::conditional_t<kType == DType::kF32, Reader32, Reader16<kType>> reader;
  constexpr uint32_t kStep = decltype(reader)::kStep;
  uint32_t group = 0;
  UnreadGroups unread(row, kGroupBytes);
  Ahead first(row.read_next[0], in_place / kStep);
  Ahead second(row.read_next[1], in_place / kStep);
  for (; group + kStep <= in_place; group += kStep) {
    first.Step();
    second.Step();
    reader.Step(unread.At(group, kStep), maxima + group);
  }
  if (group < in_place && in_place >= kStep) {
    group = in_place - kStep;  // some of them again
    reader.Step(unread.At(group, kStep), maxima + group);
    group = in_place;
  }
  if (group < in_place) unread.At(group, in_place - group);
  for (uint32_t i = group; i < (groups + 63) / 64 * 64; ++i) maxima[i] = law::kMaskedBits;
  uint32_t max_key = MakeKeys(maxima, (groups + 63) / 64 * 64);
  for (; group < groups; ++group) {
    const std::byte* const elements = PlaceOfGroup(row, group);
    reader.Look(elements);
    maxima[group] = LargestKey<kType>(elements);
    max_key = HWY_MAX(max_key, maxima[group]);
  }
  return {max_key, max_key >= kTooLargeKey || reader.FoundNan()};
}

// True if the group has a NaN among its elements.
template <DType kType>
HWY_INLINE bool HasNan(const std::byte* elements) {
  if constexpr (kType == DType::kF32) {
    Floats32 reader;
    reader.LoadGroup(elements, 0);
    return reader.FoundNan();
  } else {
    const D16 d;
    const V16 infinity = hn::Set(d, kType == DType::kF16 ? 0x7c00 : 0x7f80);
    V16 most = hn::Zero(d);
    for (size_t i = 0; i < law::kGroupSize; i += hn::MaxLanes(d)) {
      const V16 v = hn::LoadU(d, reinterpret_cast<const uint16_t*>(elements) + i);
      most = hn::Max(most, hn::And(v, hn::Set(d, 0x7fff)));
    }
    return !hn::AllFalse(d, hn::Gt(most, infinity));
  }
}

// A group's tokens that show what was sent, any element type widened to f32.
template <DType kType>
HWY_INLINE VF32 LoadSent(const Row& row, uint32_t group) {
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

// The same for the first kLanes listed groups. They are prefetched kLanes before they are loaded; behind the list's end
// stands its first group again.
template <DType kType>
struct ListedLoads {
  HWY_INLINE ListedLoads(const Row& of, const uint32_t* list, uint32_t number) : row(of), groups(list), count(number) {}
  HWY_INLINE VF32 operator()(size_t lane) const {
    constexpr size_t kGroupBytes = law::kGroupSize * ElementBytes(kType);
    if (lane + kLanes < count) {
      const std::byte* const later = row.elements + groups[lane + kLanes] * kGroupBytes;
      for (size_t line = 0; line < kGroupBytes; line += 64) Prefetch(later + line);
    }
    return LoadSent<kType>(row, groups[lane < count ? lane : 0]);
  }

  const Row& row;
  const uint32_t* groups;
  uint32_t count;
};

}  // namespace

void LargestSentKeys(const Row& row, const uint32_t* groups, uint32_t count, uint32_t* keys) {
  WithDType(row.dtype, [&]<DType kType>() HWY_ATTR {
    for (uint32_t i = 0; i < count; i += kLanes) {
      const VF32 maxima = WholeGroups<Floats32>(ListedLoads<kType>(row, groups + i, count - i));
      hn::StoreU(KeyOf(hn::BitCast(D32(), maxima)), D32(), keys + i);
    }
  });
}

void CopyGroup(const Row& row, uint32_t group) {
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

Reading ReadMaxima(const Row& row, uint32_t* maxima) {
  return WithDType(row.dtype, [&]<DType kType>() HWY_ATTR { return ReadMaximaAs<kType>(row, maxima); });
}

}  // namespace sortition::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
