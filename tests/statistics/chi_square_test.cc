// The statistics themselves: known values, and the power to see a wrong distribution.
#include "tests/statistics/chi_square.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace sortition::testing::chi_square_test {
namespace {

TEST(ChiSquare, UpperGammaEqualsClosedForms) {
  for (const double x : {0.1, 1.0, 3.0, 20.0}) {
    EXPECT_NEAR(UpperGamma(1, x), std::exp(-x), 1e-12);
    EXPECT_NEAR(UpperGamma(0.5, x), std::erfc(std::sqrt(x)), 1e-12);
    EXPECT_NEAR(UpperGamma(3, x), std::exp(-x) * (1 + x + x * x / 2), 1e-12);
  }
  // Chi-square's 10^-7 point at 10 degrees of freedom.
  EXPECT_NEAR(UpperGamma(5, 53.11 / 2) / 7.1e-8, 1, 0.01);
}

std::vector<uint64_t> Counts(double bias) {
  std::mt19937_64 random(9);
  std::vector<uint64_t> counts(100);
  for (int n = 0; n < 1'000'000; ++n) {
    uint64_t i = random() % 100;
    if (i == 0 && double(random() >> 11) * 0x1p-53 < bias) i = 1;
    ++counts[i];
  }
  return counts;
}

TEST(ChiSquare, AcceptsFairCountsDetectsTenPercentBias) {
  const std::vector<double> uniform(100, 0.01);
  EXPECT_GT(CompareCounts(Counts(0), uniform).upper_tail, 1e-4);
  EXPECT_LT(CompareCounts(Counts(0.1), uniform).upper_tail, kFailureProbability / 2);
}

TEST(ChiSquare, DetectsTooEvenCounts) {
  const std::vector<double> uniform(100, 0.01);
  EXPECT_LT(CompareCounts(std::vector<uint64_t>(100, 10'000), uniform).lower_tail, kFailureProbability / 2);
}

TEST(ChiSquare, PoolsRareEntries) {
  const std::vector<double> probabilities = {0.00001, 0.49999, 0.5};
  EXPECT_EQ(CompareCounts({0, 500, 500}, probabilities).degrees, 1);
}

}  // namespace
}  // namespace sortition::testing::chi_square_test
