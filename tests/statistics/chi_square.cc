// Pearson's test.
#include "tests/statistics/chi_square.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace sortition::testing {

double UpperGamma(double a, double x) {
  if (x <= 0) return 1;
  const double scale = std::exp(a * std::log(x) - x - std::lgamma(a));
  if (x < a + 1) {
    // Series of the lower function.
    double term = 1 / a;
    double sum = term;
    for (double n = a + 1; term > sum * 1e-16; ++n) sum += term *= x / n;
    return 1 - scale * sum;
  }
  // Continued fraction, evaluated forwards by Lentz's method.
  double b = x + 1 - a;
  double c = 1e300;
  double d = 1 / b;
  double fraction = d;
  for (int n = 1; n < 100'000; ++n) {
    const double numerator = -n * (n - a);
    b += 2;
    d = 1 / (b + numerator * d);
    c = b + numerator / c;
    fraction *= c * d;
    if (std::fabs(c * d - 1) < 1e-15) break;
  }
  return scale * fraction;
}

ChiSquare CompareCounts(const std::vector<uint64_t>& counts, const std::vector<double>& probabilities) {
  const auto draws = double(std::accumulate(counts.begin(), counts.end(), uint64_t{0}));
  std::vector<size_t> order(counts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::erase_if(order, [&](size_t i) { return probabilities[i] == 0; });
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return probabilities[a] < probabilities[b]; });

  ChiSquare result;
  double expected = 0;
  double seen = 0;
  // From the rarest up; a last bin that expects too little would be the likeliest tokens', so it does not occur.
  for (const size_t i : order) {
    expected += draws * probabilities[i];
    seen += double(counts[i]);
    if (expected < kLeastExpected && i != order.back()) continue;
    result.statistic += (seen - expected) * (seen - expected) / expected;
    result.degrees += 1;
    expected = 0;
    seen = 0;
  }
  result.degrees -= 1;
  result.upper_tail = UpperGamma(result.degrees / 2, result.statistic / 2);
  result.lower_tail = 1 - result.upper_tail;
  return result;
}

void ExpectCounts(const std::vector<uint64_t>& counts, const std::vector<double>& probabilities, int least_bins) {
  for (size_t i = 0; i < counts.size(); ++i) {
    if (probabilities[i] == 0) {
      EXPECT_EQ(counts[i], 0u) << "drawn although excluded: " << i;
    }
  }
  const ChiSquare result = CompareCounts(counts, probabilities);
  ::testing::Test::RecordProperty("degrees", std::to_string(result.degrees));
  ::testing::Test::RecordProperty("upper_tail", std::to_string(result.upper_tail));
  EXPECT_GE(result.degrees + 1, least_bins);
  EXPECT_GT(result.upper_tail, kFailureProbability / 2) << "statistic " << result.statistic << " of " << result.degrees;
  EXPECT_GT(result.lower_tail, kFailureProbability / 2) << "statistic " << result.statistic << " of " << result.degrees;
}

}  // namespace sortition::testing
