// The loops, once per instruction set.
#include "tests/bench/cpu/baselines.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/bench/cpu/baselines.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sortition::bench::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Loads and operations run in eight independent chains, enough to hide the latency of each.
constexpr size_t kChains = 8;

template <typename T>
T MaxOf(const T* values, size_t size, T lowest) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  auto m0 = hn::Set(d, lowest), m1 = m0, m2 = m0, m3 = m0, m4 = m0, m5 = m0, m6 = m0, m7 = m0;
  size_t i = 0;
  for (; i + kChains * lanes <= size; i += kChains * lanes) {
    m0 = hn::Max(m0, hn::LoadU(d, values + i));
    m1 = hn::Max(m1, hn::LoadU(d, values + i + lanes));
    m2 = hn::Max(m2, hn::LoadU(d, values + i + 2 * lanes));
    m3 = hn::Max(m3, hn::LoadU(d, values + i + 3 * lanes));
    m4 = hn::Max(m4, hn::LoadU(d, values + i + 4 * lanes));
    m5 = hn::Max(m5, hn::LoadU(d, values + i + 5 * lanes));
    m6 = hn::Max(m6, hn::LoadU(d, values + i + 6 * lanes));
    m7 = hn::Max(m7, hn::LoadU(d, values + i + 7 * lanes));
  }
  m0 = hn::Max(hn::Max(hn::Max(m0, m1), hn::Max(m2, m3)), hn::Max(hn::Max(m4, m5), hn::Max(m6, m7)));
  T max = hn::GetLane(hn::MaxOfLanes(d, m0));
  for (; i < size; ++i) max = values[i] > max ? values[i] : max;
  return max;
}

float MaxPass(const float* logits, size_t size) { return MaxOf(logits, size, -3e38f); }

int16_t MaxPassBf16(const int16_t* logits, size_t size) { return MaxOf(logits, size, int16_t{-1}); }

// exp2 of y >= -126: round, polynomial of the fraction, scale.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp2(D d, V y) {
#if HWY_TARGET <= HWY_AVX3
  const V whole{_mm512_roundscale_ps(y.raw, 8)};
#else
  const V magic = hn::Set(d, 12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const V shifted = hn::Add(y, magic);
  const V whole = hn::Sub(shifted, magic);
#endif
  const V f = hn::Sub(y, whole);
  V p = hn::Set(d, 0x1.5bfd58p-10f);
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.3ceaf8p-7f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.c6b69ap-5f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.ebf9bap-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.62e42ap-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
#if HWY_TARGET <= HWY_AVX3
  return V{_mm512_scalef_ps(p.raw, whole.raw)};
#else
  const hn::RebindToSigned<D> di;
  return hn::BitCast(d, hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
#endif
}

float ExpSumPass(const float* logits, size_t size, float max) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  constexpr float kLog2E = 1.44269504f;
  const auto scale = hn::Set(d, kLog2E);
  const auto offset = hn::Set(d, -max * kLog2E);
  const auto least = hn::Set(d, -100.0f);
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  size_t i = 0;
  for (; i + 4 * lanes <= size; i += 4 * lanes) {
    s0 = hn::Add(s0, Exp2(d, hn::Max(hn::MulAdd(hn::LoadU(d, logits + i), scale, offset), least)));
    s1 = hn::Add(s1, Exp2(d, hn::Max(hn::MulAdd(hn::LoadU(d, logits + i + lanes), scale, offset), least)));
    s2 = hn::Add(s2, Exp2(d, hn::Max(hn::MulAdd(hn::LoadU(d, logits + i + 2 * lanes), scale, offset), least)));
    s3 = hn::Add(s3, Exp2(d, hn::Max(hn::MulAdd(hn::LoadU(d, logits + i + 3 * lanes), scale, offset), least)));
  }
  for (; i < size; i += lanes) {
    const auto some = hn::FirstN(d, size - i);
    const auto x = hn::IfThenElse(some, hn::MaskedLoad(some, d, logits + i), hn::Set(d, max - 1000));
    s0 = hn::Add(s0, hn::IfThenElseZero(some, Exp2(d, hn::Max(hn::MulAdd(x, scale, offset), least))));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}

}  // namespace sortition::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sortition::bench {

HWY_EXPORT(MaxPass);
HWY_EXPORT(MaxPassBf16);
HWY_EXPORT(ExpSumPass);

float MaxPass(const float* logits, size_t size) { return HWY_DYNAMIC_DISPATCH(MaxPass)(logits, size); }
int16_t MaxPassBf16(const int16_t* logits, size_t size) { return HWY_DYNAMIC_DISPATCH(MaxPassBf16)(logits, size); }
float ExpSumPass(const float* logits, size_t size, float max) {
  return HWY_DYNAMIC_DISPATCH(ExpSumPass)(logits, size, max);
}

}  // namespace sortition::bench
#endif
