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
#include "kernels/cpu/simd/spread.inc"

HWY_BEFORE_NAMESPACE();
namespace sortition::kernels::cpu::HWY_NAMESPACE {

namespace {

// A reader's elements may have fewer.
template <class Reader>
constexpr size_t kLaneBytes = sizeof(hn::TFromD<typename Reader::D>);

// Returns partial maxima: lane i of each run of kGroups lanes is that of a part of group first + i. load(group) gives a
// vector of such runs for the kLoaded groups from `group` on. kGroups lanes fill at most a block of 128 bits.
template <size_t kGroups, size_t kLoaded, class Reader, typename Load>
HWY_INLINE typename Reader::V PartsOfGroups(size_t first, Load load) {
  if constexpr (kGroups == kLoaded) {
    return load(first);
  } else {
    constexpr size_t kHalf = kGroups / 2;
    const auto a = PartsOfGroups<kHalf, kLoaded, Reader>(first, load);
    const auto b = PartsOfGroups<kHalf, kLoaded, Reader>(first + kHalf, load);
    const typename Reader::D d;
    const hn::Repartition<hwy::UnsignedFromSize<kHalf * kLaneBytes<Reader>>, typename Reader::D> runs;
    const auto ra = hn::BitCast(runs, a);
    const auto rb = hn::BitCast(runs, b);
    return Reader::Larger(hn::BitCast(d, hn::InterleaveLower(runs, ra, rb)),
                          hn::BitCast(d, hn::InterleaveUpper(runs, ra, rb)));
  }
}

// Returns whole maxima: lane i is that of group i.
template <size_t kLoaded, class Reader, typename Load>
HWY_INLINE typename Reader::V WholeGroups(Load load) {
  const typename Reader::D d;
  constexpr size_t kBlock = 16 / kLaneBytes<Reader>;  // lanes, and groups, of 128 bits
  constexpr size_t kBlocks = hn::MaxLanes(d) / kBlock;
  static_assert(kBlocks == 1 || kBlocks == 2 || kBlocks == 4);
  // Names each block: the results of a loop would lie in memory.
  const auto a = PartsOfGroups<kBlock, kLoaded, Reader>(0, load);
  if constexpr (kBlocks == 1) {
    return a;
  } else if constexpr (kBlocks == 2) {
    const auto b = PartsOfGroups<kBlock, kLoaded, Reader>(kBlock, load);
    return Reader::Larger(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a));
  } else {
    const auto b = PartsOfGroups<kBlock, kLoaded, Reader>(kBlock, load);
    const auto c = PartsOfGroups<kBlock, kLoaded, Reader>(2 * kBlock, load);
    const auto e = PartsOfGroups<kBlock, kLoaded, Reader>(3 * kBlock, load);
    const auto ac = Reader::Larger(hn::ConcatLowerLower(d, c, a), hn::ConcatUpperUpper(d, c, a));  // blocks a a c c
    const auto be = Reader::Larger(hn::ConcatLowerLower(d, e, b), hn::ConcatUpperUpper(d, e, b));  // blocks b b e e
    return Reader::Larger(hn::OddEvenBlocks(be, ac),
                          hn::OddEvenBlocks(hn::SwapAdjacentBlocks(be), hn::SwapAdjacentBlocks(ac)));
  }
}

// Consecutive groups, the first of which lies at `elements`. (A lambda would not always be inlined.)
template <class Reader>
struct GroupLoads {
  static constexpr size_t kGroupBytes = law::kGroupSize * Reader::kBytes;

  HWY_INLINE GroupLoads(const std::byte* first, Reader* by) : elements(first), reader(by) {}
  HWY_INLINE typename Reader::V operator()(size_t group) const { return LoadAhead(elements, group, reader); }

  const std::byte* elements;
  Reader* reader;
};

// The parts that bodies of `groups` groups each have left.
template <class Reader>
struct PartLoads {
  using D = typename Reader::D;

  HWY_INLINE PartLoads(const hn::TFromD<D>* left, size_t groups) : parts(left), groups_a_body(groups) {}
  HWY_INLINE typename Reader::V operator()(size_t group) const {
    return hn::Load(D(), parts + group / groups_a_body * hn::MaxLanes(D()));
  }

  const hn::TFromD<D>* parts;
  size_t groups_a_body;
};

// Number of groups that one step reads.
template <class Reader>
constexpr uint32_t kStepOf = hn::MaxLanes(typename Reader::D());

// Returns the maxima of kStepOf consecutive groups, the first at `elements`, a lane each. Each turn of a loop reads
// kBodyBytes and keeps partial maxima in memory, which are put together afterwards.
template <class Reader>
HWY_INLINE typename Reader::V ConsecutiveGroups(const std::byte* elements, Reader* reader) {
  using T = hn::TFromD<typename Reader::D>;
  const typename Reader::D d;
  constexpr uint32_t kStep = kStepOf<Reader>;
  constexpr size_t kStepBytes = kStep * law::kGroupSize * Reader::kBytes;
  constexpr uint32_t kBodyGroups = kStep * kBodyBytes / kStepBytes;
  alignas(64) T parts[kStepBytes / kBodyBytes * kStep];
  T* to = parts;
  for (const std::byte* const end = elements + kStepBytes; elements != end; elements += kBodyBytes) {
    hn::Store(PartsOfGroups<kBodyGroups, 1, Reader>(0, GroupLoads<Reader>(elements, reader)), d, to);
    to += kStep;
#if HWY_ARCH_X86
    asm volatile("" : "+r"(to));  // or the compiler would make one body of all turns
#endif
  }
  return WholeGroups<kBodyGroups, Reader>(PartLoads<Reader>(parts, kBodyGroups));
}

// Step() passes the f32 bits of the maxima of kStep groups to keep(i, bits), a vector for the groups from i on.
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

// Sums what its steps read. What Look sees is not summed.
template <DType kType>
struct SummingReader {
  static constexpr uint32_t kStep = kStepOf<SummedFloats<kType>>;
  static constexpr bool kSums = true;

  HWY_INLINE SummingReader() : largest_squares(hn::Zero(DF32())) {}

  template <typename Keep>
  HWY_INLINE void Step(const std::byte* elements, Keep keep) {
    keep(0, hn::BitCast(D32(), ConsecutiveGroups(elements, &floats)));
    if (++steps % (SummedFloats<kType>::kMostGroups / kStep) == 0) Flush();
  }
  HWY_INLINE void Look(const std::byte* elements) { saw_nan |= HasNan<kType>(elements); }

  HWY_INLINE void Flush() {
    largest_squares = hn::Max(largest_squares, floats.LargestSquares());
    floats.MoveTo(&totals);
  }
  HWY_INLINE SentSpread Sums() {
    Flush();
    const uint32_t groups = steps * kStep;
    return {groups, totals.Of(groups * law::kGroupSize), hn::GetLane(hn::MaxOfLanes(DF32(), largest_squares))};
  }

  SummedFloats<kType> floats;
  SpreadTotals totals;
  VF32 largest_squares;
  uint32_t steps = 0;
  bool saw_nan = false;
};

// Prefetches memory that is read after the row, in equal parts, so that its lines do not come all at once.
class LinesAhead {
 public:
  HWY_INLINE LinesAhead(std::span<const std::byte> bytes, uint32_t parts)
      : left_(bytes), bytes_a_part_((bytes.size() / 64 + parts) / parts * 64) {}

  HWY_INLINE void AskForPart() {
    const std::span<const std::byte> part = left_.first(HWY_MIN(bytes_a_part_, left_.size()));
    for (size_t at = 0; at < part.size(); at += 64) Prefetch(part.data() + at);
    left_ = left_.subspan(part.size());
  }

 private:
  std::span<const std::byte> left_;
  const size_t bytes_a_part_;
};

// The groups of a row before its maxima are known, where they lie in one piece.
struct GroupsAsSent {
  HWY_INLINE GroupsAsSent(const std::byte* first, size_t bytes) : elements(first), group_bytes(bytes) {}
  HWY_INLINE const std::byte* At(uint32_t group, uint32_t) const { return elements + group * group_bytes; }

  const std::byte* const elements;
  const size_t group_bytes;
};

// The same, where they are copied, or lie in several pieces.
class GroupsElsewhere {
 public:
  HWY_INLINE GroupsElsewhere(const Row& row, size_t group_bytes)
      : group_bytes_(group_bytes), is_lazy_(row.lazy != nullptr), copier_(row.copy) {}

  // Returns a place where the `count` groups from `group` on lie in one piece.
  HWY_INLINE const std::byte* At(uint32_t group, uint32_t count) {
    const size_t begin = group * group_bytes_;
    if (is_lazy_) return copier_.InOnePiece(begin, count * group_bytes_);
    Fetch(begin, count * group_bytes_, &copier_);
    return copier_.to() + begin;
  }

 private:
  const size_t group_bytes_;
  const bool is_lazy_;
  RowCopier copier_;
};

template <DType kType, class Reader, class Groups>
HWY_INLINE Reading ReadMaximaOf(const Row& row, Groups unread, uint32_t* maxima) {
  const D32 d;
  const uint32_t groups = row.groups;
  const uint32_t in_place = GroupsInPlace(row);

  Reader reader;
  constexpr uint32_t kStep = Reader::kStep;
  V32 max = hn::Zero(d);
  // The last step may read groups of the one before it again, if they are not summed.
  const uint32_t steps = Reader::kSums || in_place < kStep ? in_place / kStep : (in_place + kStep - 1) / kStep;
  constexpr size_t kMostParts = 32;
  const size_t lines = HWY_MAX(row.read_next[0].size(), row.read_next[1].size()) / 64 + 1;
  const auto parts = uint32_t(HWY_MIN(lines, kMostParts));
  LinesAhead edits(row.read_next[0], parts), mask(row.read_next[1], parts);
  const uint32_t steps_a_part = steps / parts + 1;
  for (uint32_t step = 0; step < steps;) {
    edits.AskForPart();
    mask.AskForPart();
    for (const uint32_t end = HWY_MIN(steps, step + steps_a_part); step < end; ++step) {
      const uint32_t first = HWY_MIN(step * kStep, in_place - kStep);
      reader.Step(unread.At(first, kStep), [&](uint32_t i, V32 bits) HWY_ATTR {
        const V32 keys = KeyOf(bits);
        hn::StoreU(keys, d, maxima + first + i);
        max = hn::Max(max, keys);
      });
    }
  }
  uint32_t group = HWY_MIN(steps * kStep, in_place);
  if (group < in_place) unread.At(group, in_place - group);
  if (!row.copy.segments.empty() && steps * kStep > in_place) {
    // A group that was read twice may have shown a larger key the first time.
    max = hn::Zero(d);
    for (uint32_t i = 0; i < steps * kStep; i += kLanes)
      max = hn::Max(max, hn::LoadU(d, maxima + HWY_MIN(i, in_place - kLanes)));
  }
  uint32_t max_key = hn::GetLane(hn::MaxOfLanes(d, max));
  for (; group < groups; ++group) {
    const std::byte* const elements = PlaceOfGroup(row, group);
    reader.Look(elements);
    maxima[group] = LargestKey<kType>(elements);
    max_key = HWY_MAX(max_key, maxima[group]);
  }
  for (; group % 64 != 0; ++group) maxima[group] = 0;
  Reading reading = {max_key, max_key >= kTooLargeKey};
  if constexpr (Reader::kSums) {
    reading.spread = reader.Sums();
    reading.suspect |= reader.saw_nan || reading.spread.spread.squares != reading.spread.spread.squares;
  } else {
    reading.suspect |= reader.FoundNan();
  }
  return reading;
}

template <DType kType, class Reader>
HWY_INLINE Reading ReadMaximaBy(const Row& row, uint32_t* maxima) {
  constexpr size_t kGroupBytes = law::kGroupSize * ElementBytes(kType);
  const std::span<const ByteSegment> segments = row.copy.segments;
  const bool is_in_one_piece = segments.empty() || (row.lazy != nullptr && segments.size() == 1);
  if (HWY_UNLIKELY(!is_in_one_piece)) {
    return ReadMaximaOf<kType, Reader>(row, GroupsElsewhere(row, kGroupBytes), maxima);
  }
  const std::byte* const elements = segments.empty() ? row.elements : segments[0].data;
  return ReadMaximaOf<kType, Reader>(row, GroupsAsSent(elements, kGroupBytes), maxima);
}

// Returns lane by lane the largest of a group's tokens that show what was sent, as f32.
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

// Gives LoadSent of the first kLanes listed groups. Prefetches the group kLanes places ahead. Behind the list's end
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
      const VF32 maxima = WholeGroups<1, Floats32>(ListedLoads<kType>(row, groups + i, count - i));
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
  return WithDType(row.dtype, [&]<DType kType>() HWY_ATTR {
    if constexpr (kType != DType::kF16) {
      if (row.sums_logits && row.lazy == nullptr) return ReadMaximaBy<kType, SummingReader<kType>>(row, maxima);
    }
    return ReadMaximaBy<kType, std::conditional_t<kType == DType::kF32, Reader32, Reader16<kType>>>(row, maxima);
  });
}

}  // namespace sortition::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
