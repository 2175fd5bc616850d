// The tables of lanes.
#include "tests/cpu/lanes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/cpu/lanes.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
//
#include "kernels/cpu/simd/law.inc"
//
#include "kernels/cpu/simd/load.inc"

HWY_BEFORE_NAMESPACE();
namespace sortition::kernels::cpu::HWY_NAMESPACE {
namespace {

HWY_INLINE V32 At(const uint32_t* values, uint32_t i) { return hn::LoadU(D32(), values + i); }
HWY_INLINE void Put(V32 v, uint32_t* values, uint32_t i) { hn::StoreU(v, D32(), values + i); }

void LoadLanes(DType dtype, const void* elements, uint32_t* bits) {
  WithDType(dtype, [&]<DType kType>() HWY_ATTR {
    for (uint32_t i = 0; i < kBatch; i += kLanes) {
      Put(LoadBits<kType>(static_cast<const std::byte*>(elements) + i * ElementBytes(kType)), bits, i);
    }
  });
}

void KeyLanes(const uint32_t* bits, uint32_t* keys) {
  for (uint32_t i = 0; i < kBatch; i += kLanes) Put(KeyOf(At(bits, i)), keys, i);
}

void KeyBitsLanes(const uint32_t* keys, uint32_t* bits) {
  for (uint32_t i = 0; i < kBatch; i += kLanes) Put(KeyBits(At(keys, i)), bits, i);
}

void DistanceLanes(const uint32_t* keys, const RowScale& row, uint32_t* t) {
  const ScaleLanes scale(row, TooSmall::kToRace);
  for (uint32_t i = 0; i < kBatch; i += kLanes) {
    Put(DistanceOfKey(hn::Max(At(keys, i), scale.least_key), scale), t, i);
  }
}

void WeightLanes(const uint32_t* keys, const RowScale& row, uint64_t* weights) {
  const Weigher weigher(row);
  for (uint32_t i = 0; i < kBatch; i += kLanes) {
    const auto [even, odd] = weigher(weigher.Numbers(At(keys, i)));
    hn::StoreInterleaved2(even, odd, D64(), weights + i);
  }
}

void WeightLanesOfNumbers(const uint32_t* bits, const RowScale& row, uint64_t* weights) {
  WithWeigher(row, [&](const auto& weigher) HWY_ATTR {
    for (uint32_t i = 0; i < kBatch; i += kLanes) {
      const auto [even, odd] = weigher(Floats(At(bits, i)));
      hn::StoreInterleaved2(even, odd, D64(), weights + i);
    }
  });
}

void NoiseLanesOf(const uint32_t* pairs, uint32_t tag, const law::DrawKey& key, uint32_t* words) {
  const D64 d;
  const NoiseSource source(tag, key);
  for (uint32_t i = 0; i < kBatch / 2; i += kLanes / 2) {
    uint64_t wide[kLanes / 2];
    // Contents of the upper halves must not matter.
    for (uint32_t lane = 0; lane < kLanes / 2; ++lane) wide[lane] = uint64_t{0xabcdef12} << 32 | pairs[i + lane];
    NoiseLanes noise[1];
    source.Words({hn::LoadU(d, wide)}, noise);
    const V64 all[] = {noise[0].x, noise[0].y, noise[0].z, noise[0].w};
    for (uint32_t word = 0; word < 4; ++word) {
      hn::StoreU(all[word], d, wide);
      for (uint32_t lane = 0; lane < kLanes / 2; ++lane) words[word * kBatch / 2 + i + lane] = uint32_t(wide[lane]);
    }
  }
}

void ChangedLanes(const uint32_t* bits, const uint32_t* bias, uint32_t repetition, uint32_t inverse_repetition,
                  const uint32_t* repeated, const uint32_t* penalty, uint32_t* changed, uint32_t* large) {
  const D32 d;
  for (uint32_t i = 0; i < kBatch; i += kLanes) {
    M32 is_large = hn::Ne(hn::Zero(d), hn::Zero(d));
    Put(Changed(At(bits, i), At(bias, i), hn::Set(d, repetition), hn::Set(d, inverse_repetition),
                hn::Ne(At(repeated, i), hn::Zero(d)), At(penalty, i), &is_large),
        changed, i);
    Put(hn::IfThenElseZero(is_large, hn::Set(d, 1u)), large, i);
  }
}

uint32_t LanesWhere(uint64_t mask, const uint32_t* values, uint32_t* listed) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < kBatch; i += kLanes) {
    const M32 lanes = MaskOf(uint32_t(mask >> i));
    if (BitsOf(lanes) != (mask >> i & ((uint64_t{1} << kLanes) - 1))) return 0;
    count += StoreWhere(lanes, At(values, i), listed + count);
  }
  return count;
}

uint32_t LanesWhereOdd(const uint64_t* wide, uint64_t* listed) {
  const D64 d;
  uint32_t count = 0;
  for (uint32_t i = 0; i < kBatch; i += kLanes / 2) {
    const V64 v = hn::LoadU(d, wide + i);
    count += StoreWhere(hn::TestBit(v, hn::Set(d, 1u)), v, listed + count);
  }
  return count;
}

}  // namespace

Lanes TableOf(const char* name) {
  return {name,          &LoadLanes,    &KeyLanes,   &KeyBitsLanes, &DistanceLanes, &WeightLanes, &WeightLanesOfNumbers,
          &NoiseLanesOf, &ChangedLanes, &LanesWhere, &LanesWhereOdd};
}

}  // namespace sortition::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sortition::kernels::cpu {

std::vector<Lanes> RunnableLanes() {
  std::vector<Lanes> runnable;
  const int64_t supported = hwy::SupportedTargets() | HWY_EMU128;
#define SORTITION_TARGET(name, bit, target) \
  if ((supported & bit) != 0) runnable.push_back(target::TableOf(name));
#include "kernels/cpu/targets.inc"
#undef SORTITION_TARGET
  return runnable;
}

}  // namespace sortition::kernels::cpu
#endif  // HWY_ONCE
