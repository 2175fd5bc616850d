// Tokens of groups: the large enough, and the number of those.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/collect.cc"
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

uint32_t CollectTokens(const Row& row, const uint32_t* groups, uint32_t count, uint32_t floor, uint32_t ceiling,
                       Candidate* candidates) {
  return WithDType(row.dtype, [&]<DType kType>() HWY_ATTR {
    const D32 d;
    const VF32 least = hn::Set(DF32(), SentFrom(floor));
    const VF32 end = hn::Set(DF32(), SentFrom(ceiling));
    // Ids first, in the first half of the candidates' memory; from the last to the first they become candidates.
    auto* const ids = reinterpret_cast<uint32_t*>(candidates);
    uint32_t collected = 0;
    for (uint32_t i = 0; i < count; ++i) {
      collected += ListTokensBetween<kType>(row, groups[i], least, end, ids + collected);
    }
    for (uint32_t i = (collected + kLanes - 1) / kLanes * kLanes; i != 0;) {
      i -= kLanes;
      const V32 tokens = hn::LoadU(d, ids + i);
      const V32 keys = KeyOf(GatherBits<kType>(row, tokens, collected - i));
      hn::StoreInterleaved2(hn::Not(tokens), keys, d, ids + 2 * i);
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
