// The integer f32 arithmetic equals the hardware's, and changes compose as the law says.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/law/law.h"
#include "tests/law/float_bits.h"
#include "tests/law/inputs.h"
#include "tests/support/scale.h"

namespace sortition::law::soft_float_test {
namespace {

// The hardware's result under the law's rule for small magnitudes.
uint32_t Flushed(float x) { return std::fabs(x) < 0x1p-60f ? 0 : Bits(x); }

TEST(SoftFloat, AddEqualsHardware) {
  Inputs inputs(11);
  for (uint64_t n = testing::Scaled(10'000'000); n > 0; --n) {
    const uint32_t a = inputs.Float(67, 165);
    // Every other pair lies within 26 binary orders of magnitude, where rounding and cancellation happen.
    const uint32_t exponent = a >> 23 & 255;
    const uint32_t low = std::max(67u, exponent - 26);
    const uint32_t b = n % 2 == 0 ? inputs.Float(low, std::min(165u, exponent + 26)) : inputs.Float(67, 165);
    ASSERT_EQ(AddF32(a, b), Flushed(Number(a) + Number(b))) << Number(a) << " + " << Number(b);
  }
}

TEST(SoftFloat, MultiplyEqualsHardware) {
  Inputs inputs(12);
  for (uint64_t n = testing::Scaled(10'000'000); n > 0; --n) {
    const uint32_t a = inputs.Float(67, 142);
    const uint32_t b = inputs.Float(120, 134);  // 0.0078 to 256: more than the range of a repetition penalty
    ASSERT_EQ(MultiplyF32(a, b), Flushed(Number(a) * Number(b))) << Number(a) << " * " << Number(b);
  }
}

TEST(SoftFloat, ZeroAddsAndMultipliesToZero) {
  EXPECT_EQ(AddF32(0, 0), 0u);
  EXPECT_EQ(AddF32(0, Bits(-2.5f)), Bits(-2.5f));
  EXPECT_EQ(AddF32(Bits(-2.5f), 0), Bits(-2.5f));
  EXPECT_EQ(AddF32(Bits(2.5f), Bits(-2.5f)), 0u);
  EXPECT_EQ(MultiplyF32(0, Bits(-3.0f)), 0u);
  EXPECT_EQ(MultiplyF32(Bits(0x1p-60f), Bits(0.5f)), 0u);
}

TEST(Changes, OrderIsBiasRepetitionPenalty) {
  // (1 + 2) / 2 - 0.25, where any other order gives another number.
  EXPECT_EQ(Changed(Bits(1.0f), Bits(2.0f), Bits(2.0f), Bits(0.5f), Bits(-0.25f)), Bits(1.25f));
  EXPECT_EQ(Changed(Bits(-1.0f), 0, Bits(2.0f), Bits(0.5f), 0), Bits(-2.0f));
  EXPECT_EQ(Changed(Bits(-1.0f), Bits(3.0f), Bits(2.0f), Bits(0.5f), 0), Bits(1.0f));
  EXPECT_EQ(Changed(Bits(-1.0f), Bits(1.0f), Bits(2.0f), Bits(0.5f), 0), 0u);
  EXPECT_EQ(Changed(Bits(7.0f), 0, 0, 0, 0), Bits(7.0f));
}

TEST(Changes, LeaveTheDomainForGood) {
  EXPECT_EQ(Changed(kMaskedBits, Bits(65000.0f), Bits(2.0f), Bits(0.5f), Bits(400.0f)), kMaskedBits);
  // Masked by its bias, although the penalty would bring it back.
  EXPECT_EQ(Changed(Bits(-60000.0f), Bits(-6000.0f), 0, 0, Bits(50000.0f)), kMaskedBits);
  EXPECT_TRUE(IsTooLarge(Changed(Bits(60000.0f), Bits(6000.0f), 0, 0, Bits(-50000.0f))));
  EXPECT_TRUE(IsTooLarge(Changed(Bits(1000.0f), 0, Bits(0.01f), Bits(100.0f), Bits(-50000.0f))));
  EXPECT_EQ(Changed(Bits(1.0f), 0, 0, 0, Bits(-4e11f)), kMaskedBits);
  EXPECT_TRUE(IsTooLarge(Changed(Bits(1.0f), 0, 0, 0, Bits(4e11f))));
  EXPECT_EQ(Changed(Bits(1.0f), 0, 0, 0, Bits(-65505.0f)), kMaskedBits);
}

}  // namespace
}  // namespace sortition::law::soft_float_test
