// Options to integers.
#include "kernels/law/parameters.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "kernels/law/law.h"
#include "tests/law/inputs.h"
#include "tests/support/scale.h"

namespace sortition::law::parameters_test {
namespace {

using kernels::RowParameters;

RowParameters Compiled(const SamplingParameters& parameters) {
  RowParameters compiled;
  Compile(parameters, &compiled);
  return compiled;
}

TEST(Parameters, DefaultsCompileToOff) {
  EXPECT_EQ(Compiled({}), RowParameters());
  EXPECT_EQ(Compiled({.temperature = 1}).multiplier, 0x5c551d95u);
}

TEST(Parameters, GreedyKeepsConstantsOfTemperatureOne) {
  RowParameters expected;
  expected.greedy = true;
  EXPECT_EQ(Compiled({.temperature = 0}), expected);
}

TEST(Parameters, LeavesOtherFieldsAlone) {
  RowParameters compiled;
  compiled.mask_nan = true;
  compiled.raw_logprob = true;
  compiled.raw_top = 5;
  const RowParameters before = compiled;
  Compile({}, &compiled);
  EXPECT_EQ(compiled, before);
}

TEST(Parameters, TemperatureConstantsHoldItsInverse) {
  Inputs inputs(51);
  for (uint64_t n = testing::Scaled(200'000); n > 0; --n) {
    const float temperature = std::bit_cast<float>(inputs.Float(120, 133) & 0x7fffffff);
    if (temperature < 0.01f || temperature > 100) continue;
    const RowParameters compiled = Compiled({.temperature = temperature});
    ASSERT_GE(compiled.multiplier, 1u << 30);
    ASSERT_LT(compiled.multiplier, 1u << 31);
    const long double inverse = std::ldexp(static_cast<long double>(compiled.multiplier), compiled.exponent - 30);
    const long double exact = 1 / (std::log(2.0L) * temperature);
    ASSERT_NEAR(double(inverse / exact), 1, 0x1p-31) << temperature;
    ASSERT_EQ(int(compiled.window), 127 + std::ilogb(63 * std::log(2.0) * temperature)) << temperature;
    ASSERT_EQ(compiled.temperature, double(temperature));
  }
}

TEST(Parameters, TopP) {
  EXPECT_EQ(Compiled({.top_p = 1}).top_p, 0u);
  EXPECT_EQ(Compiled({.top_p = 0.5f}).top_p, 1u << 31);
  EXPECT_EQ(Compiled({.top_p = std::nextafter(1.0f, 0.0f)}).top_p, 0xffffff00u);
  EXPECT_EQ(Compiled({.top_p = 0x1p-32f}).top_p, 1u);
  EXPECT_EQ(Compiled({.top_p = 0x1.8p-32f}).top_p, 2u);  // ties go to even
  EXPECT_EQ(Compiled({.top_p = 0x1.4p-31f}).top_p, 2u);
  EXPECT_EQ(Compiled({.top_p = 1e-30f}).top_p, 1u);
}

TEST(Parameters, Repetition) {
  EXPECT_EQ(Compiled({.repetition_penalty = 1}).repetition, 0u);
  const RowParameters compiled = Compiled({.repetition_penalty = 1.3f});
  EXPECT_EQ(compiled.repetition, std::bit_cast<uint32_t>(1.3f));
  EXPECT_EQ(compiled.inverse_repetition, std::bit_cast<uint32_t>(float(1.0L / 1.3f)));
}

TEST(Parameters, PenaltyBitsRoundEachOperationOnce) {
  EXPECT_EQ(PenaltyBits(0, 0, 1), 0u);
  EXPECT_EQ(PenaltyBits(0.5f, 0.25f, 3), std::bit_cast<uint32_t>(-1.75f));
  EXPECT_EQ(PenaltyBits(-0.5f, 0, 2), std::bit_cast<uint32_t>(1.0f));
  EXPECT_EQ(PenaltyBits(1e-20f, 0, 1), 0u);
  EXPECT_EQ(PenaltyBits(0.5f, 0.25f, 3, 2.0), std::bit_cast<uint32_t>(-3.75f));
  EXPECT_EQ(PenaltyBits(0.5f, 0.25f, 0, 2.0), std::bit_cast<uint32_t>(-2.0f)) << "what does not occur is not counted";
  EXPECT_EQ(PenaltyBits(0.1f, 0.1f, 7), std::bit_cast<uint32_t>(float(-(double(0.1f) * 7 + double(0.1f)))));
  EXPECT_EQ(PenaltyBits(100, 100, 0xffffffff), std::bit_cast<uint32_t>(-429496729600.0f));
}

TEST(Parameters, CanonicalBitsFlush) {
  EXPECT_EQ(CanonicalBits(-0.0f), 0u);
  EXPECT_EQ(CanonicalBits(1e-19f), 0u);
  EXPECT_EQ(CanonicalBits(-65503.0f), std::bit_cast<uint32_t>(-65503.0f));
}

TEST(Parameters, MinPOfPowersOfTwoAndOff) {
  EXPECT_EQ(MinPDistance(0), RowParameters::kMinPOff);
  EXPECT_EQ(MinPDistance(1), 0u);
  EXPECT_EQ(MinPDistance(0.5f), 1u << 26);
  EXPECT_EQ(MinPDistance(0x1p-62f), 62u << 26);
  EXPECT_EQ(MinPDistance(0x1p-63f), RowParameters::kMinPOff);
  EXPECT_EQ(MinPDistance(1e-45f), RowParameters::kMinPOff);
  EXPECT_EQ(MinPDistance(std::nextafter(0x1p-63f, 1.0f)), (63u << 26) - 12);
}

// Every mantissa. An x87 logarithm is within 2^-63 of the exact one, so its floor is the exact floor unless it lies
// within 2^-63 * 2^26 of a whole number; the test shows that it never comes within 2^-28.
TEST(Parameters, MinPIsExactFloorForEveryMantissa) {
  static_assert(std::numeric_limits<long double>::digits == 64);
  const auto step = uint32_t(1 / testing::TestScale());
  long double closest = 1;
  for (uint32_t mantissa = 0x800001; mantissa < 0x1000000; mantissa += step) {
    const float min_p = std::ldexp(float(mantissa), -24);  // in (0.5, 1)
    const long double exact = -std::log2(static_cast<long double>(min_p)) * 0x1p26L;
    const long double floor = std::floor(exact);
    closest = std::min({closest, exact - floor, floor + 1 - exact});
    ASSERT_EQ(MinPDistance(min_p), uint32_t(floor)) << mantissa;
  }
  EXPECT_GT(closest, 0x1p-28L);
}

TEST(ParametersDeathTest, OutOfRangeAborts) {
  EXPECT_DEATH(Compiled({.temperature = 0.001f}), "broken invariant");
  EXPECT_DEATH(Compiled({.temperature = std::nanf("")}), "broken invariant");
  EXPECT_DEATH(Compiled({.top_p = 0}), "broken invariant");
  EXPECT_DEATH(Compiled({.top_k = 1u << 20}), "broken invariant");
  EXPECT_DEATH(Compiled({.min_p = 1.5f}), "broken invariant");
  EXPECT_DEATH(Compiled({.repetition_penalty = 0}), "broken invariant");
  EXPECT_DEATH(Compiled({.presence_penalty = -101}), "broken invariant");
}

TEST(Temperature, DynamicOneIsLowestAtTheLeastEntropy) {
  constexpr u64 kSum = u64{1} << 44;
  constexpr u64 kMoment = u64{1} << 16;
  ASSERT_EQ(EntropyOctaves(kSum, kMoment), 1u);
  constexpr u32 kLow = 1u << 23, kSpan = 1u << 24;
  EXPECT_EQ(DynamicTemperature(2, kSum, kMoment, kLow, kSpan, 1u << 28), kLow);
  EXPECT_EQ(DynamicTemperature(2, kSum, kMoment * 2, kLow, kSpan, 1u << 28), kLow);
  EXPECT_EQ(DynamicTemperature(2, 2 * kSum, 0, kLow, kSpan, 1u << 28), kLow + kSpan);
}

}  // namespace
}  // namespace sortition::law::parameters_test
