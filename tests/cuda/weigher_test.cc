// The weights that loops over whole rows take are the law's, for any logit and scale.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/law/parameters.h"
#include "tests/cuda/emulator/built_ins.h"
// The kernels see those names.
#include "kernels/cuda/weigher.cuh"

namespace sortition::kernels::cuda::weigher_test {
namespace {

// Returns the law's weight of a logit as it was sent; f32 bits.
u64 LawfulWeight(u32 bits, const Scale& scale) { return Weight(Distance(Canonical(bits), scale)); }

// Checks every 16-bit logit and some of 32 bits that is live and not above the largest, and -Inf.
void ExpectLawfulWeights(u32 max_bits, const Scale& scale, const std::vector<u32>& logits) {
  const Weigher weigher(scale);
  for (const u32 bits : logits) {
    const u32 canonical = Canonical(bits);
    if (canonical == kMaskedBits || Key(canonical) > Key(max_bits)) continue;
    ASSERT_EQ(weigher.WeightOfNumber(__uint_as_float(bits), kPowers), LawfulWeight(bits, scale))
        << std::hex << bits << " below " << max_bits << ", multiplier " << scale.multiplier << ", e0 " << scale.e0;
  }
  ASSERT_EQ(weigher.WeightOfNumber(__uint_as_float(kMaskedBits), kPowers), 0u);
}

TEST(Weigher, WeightsEqualLaw) {
  std::mt19937_64 random(20261122);
  std::vector<u32> logits;
  for (u32 half = 0; half < 65536; ++half) {
    logits.push_back(WidenBf16(half));
    logits.push_back(WidenHalf(half));
  }
  for (int i = 0; i < 100000; ++i) logits.push_back(u32(random()));
  // Around 0 and the ends of the live range.
  for (const u32 edge : {0u, 0x21800000u, 0xa1800000u, 0x477fe000u, 0xc77fe000u, 0x80000000u}) {
    for (u32 step = 0; step < 16; ++step) logits.push_back(edge + step - 8);
  }
  for (const float temperature : {0.01f, 0.07f, 0.5f, 0.9f, 1.0f, 1.7f, 13.0f, 100.0f}) {
    RowParameters parameters;
    law::Compile({.temperature = temperature}, &parameters);
    for (const float max : {-65503.0f, -300.25f, -0x1p-59f, 0.0f, 0x1p-60f, 0.4f, 3.0f, 27.125f, 880.0f, 65503.0f}) {
      const u32 max_bits = Canonical(__float_as_uint(max));
      ExpectLawfulWeights(max_bits, MakeScale(max_bits, parameters.multiplier, parameters.exponent, parameters.window),
                          logits);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Weigher, NumbersMapToKeys) {
  std::mt19937_64 random(20261123);
  std::vector<u32> keys = {0, 1, kLowestKey - 1, kLowestKey, kLowestKey + 1, 0xff800000u, 0xff800001u, 0xffffffffu};
  for (const u32 edge : {0x80000000u, 0x80000000u | 0x21800000u, ~0xa1800000u}) {
    for (u32 step = 0; step < 4; ++step) keys.push_back(edge + step - 2);
  }
  for (int i = 0; i < 100; ++i) keys.push_back(u32(random()));
  std::vector<u32> logits = {0, 0x80000000u, 1, 0x80000001u, 0x7fc00000u, 0xffc00000u, kMaskedBits, 0xc77fe000u};
  for (const u32 edge : {0x21800000u, 0xa1800000u, 0xc77fe000u}) {
    for (u32 step = 0; step < 4; ++step) logits.push_back(edge + step - 2);
  }
  for (const u32 key : keys) {
    if (key != 0) logits.push_back(KeyBits(key));
  }
  for (int i = 0; i < 10000; ++i) logits.push_back(u32(random()));
  for (const u32 key : keys) {
    for (const u32 bits : logits) {
      // Rows with such logits have failed.
      if (IsTooLarge(bits)) continue;
      const u32 logit_key = Key(Canonical(bits));
      EXPECT_EQ(__uint_as_float(bits) >= NumberFrom(key), logit_key != 0 && logit_key >= key)
          << std::hex << bits << " and key " << key;
    }
  }
}

}  // namespace
}  // namespace sortition::kernels::cuda::weigher_test
