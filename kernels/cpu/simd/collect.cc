// Lists and counts the tokens of groups that are large enough.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/collect.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
//
#include <bit>
#include <cstring>

#include "kernels/cpu/sent_from.h"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/law.inc"
#include "kernels/law/row_law.h"
//
#include "kernels/cpu/simd/load.inc"

HWY_BEFORE_NAMESPACE();
namespace sortition::kernels::cpu::HWY_NAMESPACE {

namespace {

// Returns the bits of the smallest 16-bit number >= `number`, which is above 0; at most infinity. Positive numbers have
// the order of their bits.
template <DType kType>
uint32_t LeastFrom(float number) {
  if constexpr (kType == DType::kBF16) {
    return (std::bit_cast<uint32_t>(number) + 0xffff) >> 16;
  } else {
    uint32_t low = 0;
    uint32_t high = 0x7c00;
    while (low < high) {
      const uint32_t middle = (low + high) / 2;
      if (std::bit_cast<float>(law::Widen(kType, middle)) >= number) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
}

// Bit i is lane i of the mask, for lanes of 16 bits.
template <class D16>
HWY_INLINE uint64_t Bits16(D16 d, hn::Mask<D16> mask) {
#if SORTITION_X86_BITS == 512
  (void)d;
  return mask.raw;
#else
  uint8_t bytes[8] = {};
  hn::StoreMaskBits(d, mask, bytes);
  uint64_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return bits;
#endif
}

// A short list consists of the groups with the row's largest tokens, a few in each.
HWY_INLINE Expected ExpectedOf(uint32_t groups) { return groups <= 256 ? Expected::kFew : Expected::kSome; }

// Lists the groups' tokens that show positive sent logits of 16 bits, at least `least` and below `end` as bits.
HWY_INLINE uint32_t ListHalves(const RowView& row, const uint32_t* groups, uint32_t count, uint32_t least, uint32_t end,
                               uint32_t* ids) {
  const hn::ScalableTag<int16_t> d;
  constexpr uint32_t kHalves = hn::MaxLanes(d);
  const auto before_least = hn::Set(d, int16_t(least - 1));
  const auto from_end = hn::Set(d, int16_t(end));
  uint32_t listed = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const std::byte* const elements = ElementsOfGroup(row, groups[i]);
    uint64_t found = 0;
    for (uint32_t at = 0; at < law::kGroupSize; at += kHalves) {
      const auto x = hn::LoadU(d, reinterpret_cast<const int16_t*>(elements) + at);
      found |= Bits16(d, hn::And(hn::Gt(x, before_least), hn::Lt(x, from_end))) << at;
    }
    if (row.sent_words != nullptr) found &= row.sent_words[groups[i]];
    listed += ListFound(found, groups[i] * law::kGroupSize, ExpectedOf(count), ids + listed);
  }
  return listed;
}

// Lists the groups' tokens that show their sent logit and have a key in [floor, ceiling).
template <DType kType>
HWY_INLINE uint32_t ListTokens(const RowView& row, const uint32_t* groups, uint32_t count, uint32_t floor,
                               uint32_t ceiling, uint32_t* ids) {
  if constexpr (kType != DType::kF32) {
    if (SentFrom(floor) > 0) {
      return ListHalves(row, groups, count, LeastFrom<kType>(SentFrom(floor)), LeastFrom<kType>(SentFrom(ceiling)),
                        ids);
    }
  }
  const VF32 least = hn::Set(DF32(), SentFrom(floor));
  const VF32 end = hn::Set(DF32(), SentFrom(ceiling));
  uint32_t listed = 0;
  for (uint32_t i = 0; i < count; ++i) {
    listed += ListTokensBetween<kType>(row, groups[i], least, end, ExpectedOf(count), ids + listed);
  }
  return listed;
}

}  // namespace

uint32_t CollectTokens(const RowView& row, const uint32_t* groups, uint32_t count, uint32_t floor, uint32_t ceiling,
                       Candidate* candidates) {
  return WithDType(row.dtype, [&]<DType kType>() HWY_ATTR {
    const D32 d;
    // Ids first, in the first half of the candidates' memory; from the last to the first they become candidates.
    auto* const ids = reinterpret_cast<uint32_t*>(candidates);
    const uint32_t collected = ListTokens<kType>(row, groups, count, floor, ceiling, ids);
    for (uint32_t i = (collected + kLanes - 1) / kLanes * kLanes; i != 0;) {
      i -= kLanes;
      const V32 tokens = hn::LoadU(d, ids + i);
      const V32 keys = KeyOf(GatherBits<kType>(row, tokens, collected - i));
      hn::StoreInterleaved2(hn::Not(tokens), keys, d, ids + 2 * i);
    }
    return collected;
  });
}

uint32_t CountTokens(const RowView& row, const uint32_t* groups, uint32_t count, Candidate last) {
  const D32 d;
  const VF32 with_ties = hn::Set(DF32(), SentFrom(last.key()));
  const VF32 without_ties = hn::Set(DF32(), SentFrom(last.key() + 1));
  const uint32_t last_group = last.token() / law::kGroupSize;
  return WithDType(row.dtype, [&]<DType kType>() HWY_ATTR {
    V32 minus = hn::Zero(d);
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t group = groups[i];
      const std::byte* const elements = ElementsOfGroup(row, group);
      const uint64_t sent = row.sent_words == nullptr ? ~uint64_t{0} : row.sent_words[group];
      const VF32 least = group < last_group ? with_ties : without_ties;
      for (uint32_t offset = 0; offset < law::kGroupSize; offset += kLanes) {
        const VF32 x = Floats(LoadBits<kType>(elements + offset * ElementBytes(kType)));
        M32 is_counted = hn::RebindMask(d, hn::Ge(x, least));
        if (HWY_UNLIKELY(group == last_group)) {
          const uint32_t ties = HWY_MAX(last.token() % law::kGroupSize + 1, offset) - offset;
          is_counted = hn::Or(is_counted, hn::And(hn::FirstN(d, ties), hn::RebindMask(d, hn::Ge(x, with_ties))));
        }
        if (sent != ~uint64_t{0}) is_counted = hn::And(is_counted, MaskOf(uint32_t(sent >> offset)));
        minus = hn::Add(minus, hn::VecFromMask(d, is_counted));
      }
    }
    return uint32_t(0 - hn::GetLane(hn::SumOfLanes(d, minus)));
  });
}

void SentKeys(const RowView& row, const uint32_t* groups, uint32_t count, uint32_t* keys) {
  WithDType(row.dtype, [&]<DType kType>() HWY_ATTR {
    for (uint32_t i = 0; i < count; ++i, keys += law::kGroupSize) {
      ForKeysOfGroup<kType>(row, groups[i],
                            [&](uint32_t offset, V32 some) HWY_ATTR { hn::StoreU(some, D32(), keys + offset); });
    }
  });
}

}  // namespace sortition::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
