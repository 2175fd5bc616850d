// Logprobs from integers.
#include "kernels/law/logprob.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/law/law.h"
#include "kernels/law/row_law.h"
#include "tests/law/float_bits.h"
#include "tests/support/scale.h"

namespace sortition::law::logprob_test {
namespace {

TEST(Logprob, PointMassIsPositiveZero) {
  kernels::Distribution distribution;
  distribution.max_bits = Bits(-3.25f);
  distribution.weight_sum = kUnitWeight;
  EXPECT_EQ(Bits(Logprob(distribution, Bits(-3.25f), 1)), 0u);
  EXPECT_EQ(Bits(Logprob(distribution, Bits(-3.25f), 0.7f)), 0u);
}

TEST(Logprob, EqualTokensGiveLogOfTheirCount) {
  kernels::Distribution distribution;
  distribution.max_bits = Bits(2.0f);
  for (uint32_t n = 0; n < 20; ++n) {
    distribution.weight_sum = kUnitWeight << n;
    EXPECT_EQ(Logprob(distribution, Bits(2.0f), 1), float(-double(n) * std::log(2.0))) << n;
  }
}

TEST(Logprob, AgreesWithFloatingPointSoftmax) {
  std::mt19937_64 random(61);
  std::normal_distribution<float> logit(0, 3);
  for (uint64_t n = testing::Scaled(2'000); n > 0; --n) {
    std::vector<float> logits(1 + random() % 3000);
    for (float& x : logits) x = logit(random);
    const float max = *std::max_element(logits.begin(), logits.end());
    const Scale scale = UnitScale(Bits(max));
    kernels::Distribution distribution;
    distribution.max_bits = Bits(max);
    long double sum = 0;
    for (const float x : logits) {
      distribution.weight_sum += Weight(Distance(Canonical(Bits(x)), scale));
      sum += std::exp(static_cast<long double>(x) - max);
    }
    const float x = logits[random() % logits.size()];
    const auto exact = double(static_cast<long double>(x) - max - std::log(sum));
    const double rounding = std::fabs(exact) * 0x1p-24;
    ASSERT_NEAR(Logprob(distribution, Bits(x), 1), exact, 2e-7 + rounding);
  }
}

TEST(Logprob, TokenOutsideDistributionIsMinusInfinity) {
  kernels::Distribution distribution;
  distribution.weight_sum = kUnitWeight;
  EXPECT_EQ(Logprob(distribution, kMaskedBits, 1), -std::numeric_limits<float>::infinity());
}

TEST(Entropy, AgreesWithFloatingPoint) {
  std::mt19937_64 random(62);
  for (uint64_t n = testing::Scaled(2'000); n > 0; --n) {
    std::vector<float> logits(1 + random() % 3000);
    std::normal_distribution<float> logit(0, 0.1f + float(random() % 80) / 10);
    for (float& x : logits) x = logit(random);
    const float max = *std::max_element(logits.begin(), logits.end());
    const Scale scale = UnitScale(Canonical(Bits(max)));
    kernels::EntropySums sums;
    long double sum = 0;
    long double moment = 0;
    for (const float x : logits) {
      const uint32_t t = Distance(Canonical(Bits(x)), scale);
      sums.weights += Weight(t);
      sums.surplus += Surplus(Weight(t), t);
      const long double below = static_cast<long double>(max) - x;
      sum += std::exp(-below);
      moment += std::exp(-below) * below;
    }
    const auto exact = double(std::log(sum) + moment / sum);
    ASSERT_NEAR(Entropy(sums), exact, 3e-7 + exact * 0x1p-24) << logits.size();
  }
}

TEST(Entropy, OneTokenIsZero) { EXPECT_EQ(Bits(Entropy({kUnitWeight, 0})), 0u); }

TEST(Entropy, EqualTokensGiveLogOfTheirCount) { EXPECT_EQ(Entropy({kUnitWeight << 5, 0}), float(5 * std::log(2.0))); }

TEST(LogprobDeathTest, NeedsADistribution) { EXPECT_DEATH(Logprob(kernels::Distribution(), 0, 1), "broken invariant"); }

}  // namespace
}  // namespace sortition::law::logprob_test
