// Distances: monotone, exact at the maximum, accurate, and equal to the truncating form that vector units use.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/law/law.h"
#include "kernels/law/parameters.h"
#include "kernels/law/row_law.h"
#include "tests/law/float_bits.h"
#include "tests/law/inputs.h"
#include "tests/support/scale.h"

namespace sortition::law::distance_test {
namespace {

kernels::RowParameters AtTemperature(float temperature) {
  kernels::RowParameters compiled;
  Compile({.temperature = temperature}, &compiled);
  return compiled;
}

TEST(Distance, ZeroForMaximumDeadForMasked) {
  Inputs inputs(21);
  for (const float temperature : {0.01f, 0.3f, 1.0f, 2.0f, 100.0f}) {
    const kernels::RowParameters parameters = AtTemperature(temperature);
    for (int n = 0; n < 1000; ++n) {
      const uint32_t max = std::min(Canonical(inputs.Float(60, 142)), 0xc77fdfffu);
      if (IsTooLarge(max)) continue;
      const Scale scale = ScaleAt(parameters, max);
      EXPECT_EQ(Distance(max, scale), 0u);
      EXPECT_EQ(Distance(kMaskedBits, scale), kDead);
      EXPECT_GE(scale.shift, 6u);
      EXPECT_LE(scale.shift, 29u);
    }
  }
}

TEST(Distance, MonotoneInLogitAndAccurate) {
  Inputs inputs(22);
  for (uint64_t n = testing::Scaled(3'000'000); n > 0; --n) {
    static constexpr float kTemperatures[] = {0.01f, 0.1f, 0.6f, 1.0f, 1.5f, 7.0f, 100.0f};
    const float temperature = kTemperatures[n % 7];
    const kernels::RowParameters parameters = AtTemperature(temperature);
    uint32_t keys[3];
    for (uint32_t& key : keys) key = Key(Canonical(inputs.Float(115, 141)));
    std::sort(keys, keys + 3);
    if (keys[2] == 0) continue;
    const Scale scale = ScaleAt(parameters, KeyBits(keys[2]));
    const uint32_t low = Distance(KeyBits(keys[0]), scale);
    const uint32_t high = Distance(KeyBits(keys[1]), scale);
    ASSERT_GE(low, high) << keys[0] << " " << keys[1] << " " << keys[2];
    const double exact = (double(Number(KeyBits(keys[2]))) - Number(KeyBits(keys[1]))) / temperature / std::log(2.0);
    if (high == kDead) {
      ASSERT_GT(exact, 62.99);
    } else {
      // Two truncations of a fixed-point logit, each below one unit of 2^(e0 - 157), and of the multiplier.
      const double unit = std::ldexp(1.0, int(scale.e0) - 157) / temperature / std::log(2.0);
      ASSERT_NEAR(high * 0x1p-26, exact, 2 * unit + 0x1p-26 + exact * 0x1p-30);
    }
  }
}

TEST(Distance, FixedPointTruncatesScaledLogit) {
  Inputs inputs(23);
  for (uint64_t n = testing::Scaled(2'000'000); n > 0; --n) {
    const uint32_t e0 = 126 + inputs.Below(18);
    const uint32_t bits = Canonical(inputs.Float(60, e0));
    if (bits == kMaskedBits) continue;
    const auto truncated = int32_t(std::ldexp(double(Number(bits)), 157 - int(e0)));
    ASSERT_EQ(int32_t(FixedPoint(bits, e0)), truncated) << bits << " " << e0;
  }
}

TEST(Distance, TellsDeadTokensBeforeTheyOverflow) {
  const Scale scale = UnitScale(std::bit_cast<uint32_t>(10.0f));
  EXPECT_NE(Distance(std::bit_cast<uint32_t>(10.0f - 43.6f), scale), kDead);
  EXPECT_EQ(Distance(std::bit_cast<uint32_t>(10.0f - 43.7f), scale), kDead);
  EXPECT_EQ(Distance(std::bit_cast<uint32_t>(-65000.0f), scale), kDead);
}

}  // namespace
}  // namespace sortition::law::distance_test
