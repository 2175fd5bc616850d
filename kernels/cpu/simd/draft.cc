// A drafter's probabilities: checks that each is one, and sums them.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/draft.cc"
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

uint64_t SumProbabilities(const std::byte* elements, DType dtype, uint32_t count, bool* suspect) {
  const D32 d;
  const DF32 df;
  return WithDType(dtype, [&]<DType kType>() HWY_ATTR {
    const VF32 unit = hn::Set(df, 0x1p30f);
    V64 sum = hn::Zero(D64());
    M32 wrong = hn::Lt(hn::Zero(d), hn::Zero(d));
    for (uint32_t i = 0; i < count; i += kLanes) {
      const V32 bits = LoadBits<kType>(elements + i * ElementBytes(kType));
      // Finds numbers above 1, infinities, NaNs of either sign, and negative numbers except -0.
      const V32 negative = hn::And(bits, hn::Set(d, 0x80000000u));
      const VI32 magnitude = Signed(hn::And(bits, hn::Set(d, 0x7fffffffu)));
      const M32 large = hn::RebindMask(d, hn::Gt(magnitude, hn::Set(DI32(), 0x3f800000)));
      const M32 below = hn::And(hn::Ne(negative, hn::Zero(d)), hn::RebindMask(d, hn::Gt(magnitude, hn::Zero(DI32()))));
      wrong = hn::Or(wrong, hn::Or(large, below));
      // Multiplying by a power of two rounds nothing, so this is law::ProbabilityUnits. A magnitude that is too large
      // is left out, so that every number has an integer.
      const V32 units = Unsigned(Truncate(hn::Mul(Floats(hn::IfThenZeroElse(large, bits)), unit)));
      sum = hn::Add(sum, hn::And(Wide(units), hn::Set(D64(), 0xffffffffu)));
      sum = hn::Add(sum, hn::ShiftRight<32>(Wide(units)));
    }
    *suspect = hn::CountTrue(d, wrong) != 0;
    return SumOf(sum);
  });
}

}  // namespace sortition::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
