// Weights and the top-p threshold.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/law/law.h"
#include "kernels/law/row_law.h"
#include "tests/law/inputs.h"
#include "tests/support/scale.h"

namespace sortition::law::weight_test {
namespace {

constexpr uint32_t kOctave = 1u << 26;

TEST(Weight, TableIsRounded) {
  for (uint32_t j = 0; j < 32; ++j) EXPECT_EQ(kPowers[j], uint32_t(std::llrint(std::exp2(31 - j / 32.0L)))) << j;
}

TEST(Weight, OneForMaximumZeroForFar) {
  EXPECT_EQ(Weight(0), kUnitWeight);
  EXPECT_GT(Weight(44 * kOctave), 0u);
  EXPECT_EQ(Weight(45 * kOctave), 0u);
  EXPECT_EQ(Weight(kDead), 0u);
}

// An octave's weights are the weights of the octave above, shifted down. So one octave and the seams stand for all.
TEST(Weight, NeverRises) {
  const auto step = uint32_t(1 / testing::TestScale());
  uint64_t last = Weight(0);
  for (uint32_t t = 0; t <= kOctave; t += step) {
    const uint64_t weight = Weight(t);
    ASSERT_LE(weight, last) << t;
    last = weight;
  }
  for (uint32_t octave = 1; octave <= 45; ++octave) {
    for (uint32_t t = octave * kOctave - 1000; t < octave * kOctave + 1000; ++t)
      ASSERT_LE(Weight(t + 1), Weight(t)) << t;
  }
}

TEST(Weight, RelativeErrorIsBelowOneInTenMillion) {
  double lowest = 0;
  double highest = 0;
  for (uint32_t t = 0; t < kOctave; t += 7) {
    const double error = double(Weight(t)) / std::exp2(44 - t * 0x1p-26) - 1;
    lowest = std::min(lowest, error);
    highest = std::max(highest, error);
  }
  EXPECT_GT(lowest, -1e-7);
  EXPECT_LT(highest, 1e-7);
}

TEST(Weight, TopPThresholdIsTheCeiling) {
  EXPECT_EQ(LeastSum(TopPThreshold(kUnitWeight, 1u << 31)), kUnitWeight / 2);
  EXPECT_EQ(LeastSum(TopPThreshold(1, 1)), 1u);
  EXPECT_EQ(LeastSum(TopPThreshold(0, 77)), 1u);
  Inputs inputs(31);
  for (uint64_t n = testing::Scaled(1'000'000); n > 0; --n) {
    const uint64_t sum = inputs.LongWord();
    const uint32_t p = inputs.Word();
    const auto product = static_cast<unsigned __int128>(sum) * p;
    const auto ceiling = uint64_t((product + 0xffffffff) >> 32);
    ASSERT_EQ(LeastSum(TopPThreshold(sum, p)), std::max<uint64_t>(1, ceiling)) << sum << " " << p;
  }
}

TEST(Weight, ThresholdIsReachedBetweenTwoSums) {
  const Threshold threshold = MakeThreshold(10);
  EXPECT_FALSE(Reaches(9, threshold));
  EXPECT_TRUE(Reaches(10, threshold));
  EXPECT_TRUE(Crosses(9, 10, threshold));
  EXPECT_FALSE(Crosses(10, 11, threshold));
  EXPECT_FALSE(Crosses(8, 9, threshold));
  EXPECT_EQ(LeastSum(Remaining(threshold, 4)), 6u);
}

template <typename A, typename B>
concept AreCompared = requires(A a, B b) {
  a < b;
}
|| requires(A a, B b) { b < a; }
|| requires(A a, B b) { a == b; };

// Outside the law nothing compares with them: there is no operator, and the house rules see their members.
TEST(Weight, ThresholdsAndBoundsHaveNoOperators) {
  static_assert(AreCompared<uint64_t, uint32_t>);
  static_assert(!AreCompared<Threshold, uint64_t> && !AreCompared<Threshold, Threshold>);
  static_assert(!AreCompared<Bound, uint32_t> && !AreCompared<Bound, Bound>);
}

}  // namespace
}  // namespace sortition::law::weight_test
