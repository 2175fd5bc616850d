// Element types, domain, canonical form and order.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/law/law.h"
#include "kernels/law/row_law.h"
#include "tests/law/float_bits.h"
#include "tests/support/scale.h"

namespace sortition::law::bits_test {
namespace {

// Every live element is restored, except those that are flushed to 0.
TEST(Bits, NarrowedElementsHaveTheSameBits) {
  for (const kernels::DType dtype : {kernels::DType::kF16, kernels::DType::kBF16}) {
    for (uint32_t element = 0; element < 0x10000; ++element) {
      const uint32_t wide = Widen(dtype, element);
      if (IsNan(wide) || IsTooLarge(wide) || Canonical(wide) == kMaskedBits) continue;
      const uint32_t narrow = Narrow(dtype, Canonical(wide));
      ASSERT_EQ(narrow, Flush(wide) == 0 ? 0 : element) << element;
    }
  }
  EXPECT_EQ(Narrow(kernels::DType::kF32, 0x3f812345u), 0x3f812345u);
}

TEST(Bits, WidenF16IsExactForEveryF16) {
  for (uint32_t h = 0; h < 1u << 16; ++h) {
    const uint32_t exponent = h >> 10 & 31;
    const uint32_t mantissa = h & 0x3ff;
    const float sign = (h & 0x8000) != 0 ? -1.0f : 1.0f;
    const uint32_t wide = WidenF16(h);
    if (exponent == 31 && mantissa != 0) {
      EXPECT_TRUE(IsNan(wide)) << h;
    } else if (exponent == 31) {
      EXPECT_EQ(wide, Bits(sign * std::numeric_limits<float>::infinity())) << h;
    } else {
      const float magnitude =
          exponent == 0 ? std::ldexp(float(mantissa), -24) : std::ldexp(float(1024 + mantissa), int(exponent) - 25);
      EXPECT_EQ(wide, Bits(sign * magnitude)) << h;
    }
  }
}

TEST(Bits, WidenBf16KeepsTheUpperHalf) { EXPECT_EQ(WidenBf16(0xbf80), Bits(-1.0f)); }

TEST(Bits, DomainAndCanonicalForm) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(IsNan(0x7f800001));
  EXPECT_TRUE(IsNan(0xffc00000));
  EXPECT_FALSE(IsNan(Bits(infinity)));
  EXPECT_FALSE(IsNan(Bits(-infinity)));
  EXPECT_TRUE(IsTooLarge(Bits(65504.0f)));
  EXPECT_TRUE(IsTooLarge(Bits(infinity)));
  EXPECT_FALSE(IsTooLarge(Bits(std::nextafter(65504.0f, 0.0f))));
  EXPECT_FALSE(IsTooLarge(0x7fc00000));
  EXPECT_FALSE(IsTooLarge(Bits(-65504.0f)));

  for (const float masked : {-65504.0f, -1e9f, -std::numeric_limits<float>::max(), -infinity}) {
    EXPECT_EQ(Canonical(Bits(masked)), kMaskedBits) << masked;
  }
  EXPECT_EQ(Canonical(0x7fc00000), kMaskedBits);
  EXPECT_EQ(Canonical(0xffc00000), kMaskedBits);
  const float lowest = std::nextafter(-65504.0f, 0.0f);
  for (const float kept : {lowest, -1.0f, 0x1p-60f, -0x1p-60f, 0.0f, 3.5f, std::nextafter(65504.0f, 0.0f)}) {
    EXPECT_EQ(Canonical(Bits(kept)), Bits(kept)) << kept;
  }
  for (const float tiny : {-0.0f, std::nextafter(0x1p-60f, 0.0f), -std::nextafter(0x1p-60f, 0.0f), 1e-45f, -1e-45f}) {
    EXPECT_EQ(Canonical(Bits(tiny)), 0u) << tiny;
  }
}

TEST(Bits, KeysOrderLikeNumbersAndInvert) {
  EXPECT_EQ(Key(kMaskedBits), 0u);
  EXPECT_EQ(KeyBits(0), kMaskedBits);
  const auto step = uint32_t(1009 / testing::TestScale());
  float last = -65504.0f;
  uint32_t last_key = 0;
  // Negative numbers from the lowest up, then the positive ones.
  for (uint32_t bits = 0xc77fdfff; bits > 0xa1800000; bits -= step) {
    ASSERT_LT(last, std::bit_cast<float>(bits));
    ASSERT_LT(last_key, Key(bits)) << bits;
    ASSERT_EQ(KeyBits(Key(bits)), bits);
    last = std::bit_cast<float>(bits);
    last_key = Key(bits);
  }
  ASSERT_LT(last_key, Key(0));
  last_key = Key(0);
  for (uint32_t bits = 0x21800000; bits < 0x477fe000; bits += step) {
    ASSERT_LT(last_key, Key(bits)) << bits;
    ASSERT_EQ(KeyBits(Key(bits)), bits);
    last_key = Key(bits);
  }
}

TEST(Bits, OrderIsKeyDescendingThenIdAscending) {
  EXPECT_TRUE(Before(5, 9, 4, 1));
  EXPECT_FALSE(Before(4, 1, 5, 9));
  EXPECT_TRUE(Before(5, 1, 5, 2));
  EXPECT_FALSE(Before(5, 2, 5, 2));
}

}  // namespace
}  // namespace sortition::law::bits_test
