// Tokens of groups: the largest, the large enough, the number of those.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/collect.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
//
#include <bit>

#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/law.inc"
//
#include "kernels/cpu/simd/load.inc"

HWY_BEFORE_NAMESPACE();
namespace sortition::kernels::cpu::HWY_NAMESPACE {

void LargestSentKeys(const Row& row, const uint32_t* groups, uint32_t count, uint32_t* keys) {
  WithDType(row.dtype, [&]<DType kType>() HWY_ATTR {
    for (uint32_t i = 0; i < count; ++i) keys[i] = LargestSentKey<kType>(row, groups[i]);
  });
}

uint32_t CollectTokens(const Row& row, const uint32_t* groups, uint32_t count, uint32_t floor, uint32_t ceiling,
                       Candidate* candidates) {
  return WithDType(row.dtype, [&]<DType kType>() HWY_ATTR {
    const D32 d;
    const V32 least = hn::Set(d, floor);
    const V32 end = hn::Set(d, ceiling);
    alignas(64) uint32_t keys[law::kGroupSize];
    uint32_t collected = 0;
    for (uint32_t i = 0; i < count; ++i) {
      uint64_t bits = 0;
      ForKeysOfGroup<kType>(row, groups[i], [&](uint32_t offset, V32 v) HWY_ATTR {
        hn::Store(v, d, keys + offset);
        bits |= BitsOf(hn::And(AtLeast(v, least), hn::Lt(v, end))) << offset;
      });
      for (; bits != 0; bits &= bits - 1) {
        const auto offset = uint32_t(std::countr_zero(bits));
        candidates[collected++] = Candidate::Of(keys[offset], groups[i] * law::kGroupSize + offset);
      }
    }
    return collected;
  });
}

uint32_t CountTokens(const Row& row, const uint32_t* groups, uint32_t count, Candidate last) {
  return WithDType(row.dtype, [&]<DType kType>() HWY_ATTR {
    uint32_t counted = 0;
    for (uint32_t i = 0; i < count; ++i) {
      ForKeysOfGroup<kType>(row, groups[i], [&](uint32_t offset, V32 keys) HWY_ATTR {
        counted += uint32_t(hn::CountTrue(D32(), NotAfter(keys, groups[i] * law::kGroupSize + offset, last)));
      });
    }
    return counted;
  });
}

}  // namespace sortition::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
