// Pearson's test of counts against probabilities, with the probability of a statistic at least as extreme.
#pragma once

#include <cstdint>
#include <vector>

namespace sortition::testing {

struct ChiSquare {
  double statistic = 0;
  double degrees = 0;
  // Chance that counts drawn from the probabilities give a statistic at least, or at most, as large as this one.
  double upper_tail = 1;
  double lower_tail = 1;
};

// Regularised upper incomplete gamma function Q(a, x), a > 0, x >= 0; about 12 digits.
double UpperGamma(double a, double x);

// Compares counts with probabilities, which are positive and sum to 1. Neighbours in order of probability are thrown
// together until each bin expects `kLeastExpected`, so that the chi-square distribution holds far into its tails.
inline constexpr double kLeastExpected = 100;
ChiSquare CompareCounts(const std::vector<uint64_t>& counts, const std::vector<double>& probabilities);

// Each comparison fails a correct sampler with less than this probability (over seeds; a fixed seed then never does).
// All comparisons of this folder, fewer than 40, together stay below 10^-6.
inline constexpr double kFailureProbability = 2.5e-8;

// Expects both tails to be likelier than half of kFailureProbability, at least `least_bins` bins, and no count where
// the probability is 0 (such entries take no part otherwise).
void ExpectCounts(const std::vector<uint64_t>& counts, const std::vector<double>& probabilities, int least_bins);

}  // namespace sortition::testing
