// Logarithms, random words, and the noise of the race.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/law/law.h"
#include "tests/law/inputs.h"
#include "tests/support/scale.h"

namespace sortition::law::noise_test {
namespace {

TEST(Log2, TablesAreRounded) {
  for (uint32_t j = 0; j < 32; ++j) {
    EXPECT_EQ(kInverses[j], uint32_t(std::llrint(65536 / (1 + (j + 0.5L) / 32)))) << j;
    EXPECT_EQ(kLogs[j], uint32_t(std::llrint(-std::log2(kInverses[j] / 65536.0L) * 0x1p32L))) << j;
  }
}

TEST(Log2, FractionIsMonotoneAcrossSeams) {
  Inputs inputs(41);
  const auto check = [](uint32_t from, uint32_t steps) {
    for (uint32_t f = from; f < from + steps; ++f) {
      ASSERT_LE(int64_t(Log2Fraction(f)), int64_t(Log2Fraction(f + 1))) << f;
    }
  };
  for (uint32_t seam = 1; seam < 32; ++seam) check((seam << 27) - 2000, 4000);
  for (uint64_t n = testing::Scaled(20'000); n > 0; --n) check(inputs.Word() & 0xfffff000, 999);
  EXPECT_EQ(int64_t(Log2Fraction(0)), -1);
  EXPECT_LE(int64_t(Log2Fraction(0xffffffff)), int64_t{1} << 32);
}

TEST(Log2, FractionErrorIsBelowTwoUnits) {
  Inputs inputs(42);
  for (uint64_t n = testing::Scaled(3'000'000); n > 0; --n) {
    const uint32_t f = inputs.Word();
    const long double exact = std::log2(1 + f * 0x1p-32L) * 0x1p32L;
    const long double error = static_cast<long double>(int64_t(Log2Fraction(f))) - exact;
    ASSERT_GT(error, -1.7L) << f;
    ASSERT_LT(error, 0.7L) << f;
  }
}

TEST(Log2, RawScalesByPowersOfTwo) {
  Inputs inputs(43);
  for (uint64_t n = testing::Scaled(1'000'000); n > 0; --n) {
    const uint64_t x = (inputs.LongWord() >> 6) | 1;
    ASSERT_EQ(Log2Raw(x << 6), Log2Raw(x) + (uint64_t{6} << 32)) << x;
    ASSERT_LE(int64_t(Log2Raw(x)), int64_t(Log2Raw(x + 1))) << x;
  }
}

// The golden outputs that come with the generator's publication.
TEST(Noise, PhiloxKnownAnswers) {
  const auto words = [](uint32_t pair, uint32_t position, uint32_t stream, uint32_t tag, uint32_t k0, uint32_t k1) {
    return NoiseWords(pair, tag, DrawKey{k0, k1, position, stream});
  };
  const PhiloxWords zero = words(0, 0, 0, 0, 0, 0);
  EXPECT_EQ(zero.x, 0x6627e8d5u);
  EXPECT_EQ(zero.y, 0xe169c58du);
  EXPECT_EQ(zero.z, 0xbc57ac4cu);
  EXPECT_EQ(zero.w, 0x9b00dbd8u);
  const PhiloxWords ones = words(~0u, ~0u, ~0u, ~0u, ~0u, ~0u);
  EXPECT_EQ(ones.x, 0x408f276du);
  EXPECT_EQ(ones.y, 0x41c83b0eu);
  EXPECT_EQ(ones.z, 0xa20bc7c6u);
  EXPECT_EQ(ones.w, 0x6d5451fdu);
  const PhiloxWords pi = words(0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0);
  EXPECT_EQ(pi.x, 0xd16cfe09u);
  EXPECT_EQ(pi.y, 0x94fdccebu);
  EXPECT_EQ(pi.z, 0x5001e420u);
  EXPECT_EQ(pi.w, 0x24126ea1u);
}

int64_t NoiseLog(const DrawKey& key, uint32_t id) {
  const uint64_t word = WordOf(NoiseWords(id / 128, kGroupTag, key), id / 64);
  const uint64_t a = NegLog2(Uniform(word));
  if (Owner(word) == id % 64) return int64_t(OwnerLog(a));
  return int64_t(OtherLog(a, NegLog2(Uniform(WordOf(NoiseWords(id / 2, kTokenTag, key), id)))));
}

TEST(Noise, GoldenLogs) {
  const DrawKey key = {0x11111111, 0x22222222, 5, 0};
  EXPECT_EQ(NoiseLog(key, 0), -23716331620);
  EXPECT_EQ(NoiseLog(key, 1), -14343813982);
  EXPECT_EQ(NoiseLog(key, 63), 2398087450);
  EXPECT_EQ(NoiseLog(key, 64), 3533417398);
  EXPECT_EQ(NoiseLog(key, 128255), 1691083083);
}

TEST(Noise, UniformIsNeverZeroOrOne) {
  EXPECT_EQ(Uniform(0), 32u);
  EXPECT_EQ(Uniform(~uint64_t{0}), ~uint64_t{0} - 31);
  EXPECT_EQ(Owner(~uint64_t{0}), 63u);
}

TEST(Noise, NegLog2IsAccurate) {
  EXPECT_EQ(NegLog2(Uniform(0)), 1u);
  Inputs inputs(44);
  for (uint64_t n = testing::Scaled(3'000'000); n > 0; --n) {
    const uint64_t r = Uniform(inputs.LongWord());
    const long double exact = -std::log1p(-(static_cast<long double>(r) * 0x1p-64L)) / std::log(2.0L) * 0x1p58L;
    const auto value = static_cast<long double>(NegLog2(r));
    ASSERT_NEAR(double(value / exact), 1, double(4.7e-9L + 1 / exact)) << r;
  }
}

// The pruning of the race rests on it.
TEST(Noise, OwnerHasLowestLogOfItsGroup) {
  Inputs inputs(45);
  for (uint64_t n = testing::Scaled(3'000'000); n > 0; --n) {
    const uint64_t a = NegLog2(Uniform(inputs.LongWord()));
    const uint64_t b = NegLog2(Uniform(inputs.LongWord()));
    ASSERT_LE(int64_t(OwnerLog(a)), int64_t(OtherLog(a, b))) << a << " " << b;
    ASSERT_GE(int64_t(OwnerLog(a)), -(int64_t{64} << 32) - 1);
  }
}

}  // namespace
}  // namespace sortition::law::noise_test
