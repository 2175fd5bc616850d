// The host's half of logprobs: IEEE double operations that round once each, and an integer logarithm.
#include "kernels/law/logprob.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/check.h"
#include "kernels/law/law.h"
#include "kernels/law/row_law.h"

namespace sortition::law {
namespace {

constexpr double kLn2 = 0x1.62e42fefa39efp-1;
constexpr double kLn2PerUnit = 0x1.62e42fefa39efp-33;  // the double nearest to ln 2, times 2^-32

// 2^32 * log2(x), exact at powers of two, where Log2Raw is one unit low.
int64_t Log2Clamped(uint64_t x) {
  const int64_t whole = int64_t{63 - std::countl_zero(x)} << 32;
  return std::max(int64_t(Log2Raw(x)), whole);
}

// ln(S * 2^-44)
double LogSum(uint64_t weight_sum) {
  SORTITION_CHECK(weight_sum != 0);
  return double(Log2Clamped(weight_sum) - (int64_t{44} << 32)) * kLn2PerUnit;
}

}  // namespace

float Logprob(const kernels::Distribution& distribution, uint32_t token_bits, double temperature) {
  const double log_sum = LogSum(distribution.weight_sum);
  if (token_bits == kMaskedBits) return -std::numeric_limits<float>::infinity();
  const double x = std::bit_cast<float>(token_bits);
  const double max = std::bit_cast<float>(distribution.max_bits);
  return float((x - max) / temperature - log_sum);
}

float Entropy(const kernels::EntropySums& sums) {
  const double octaves = double(sums.surplus) / double(sums.weights);
  return float(LogSum(sums.weights) + octaves * kLn2);
}

float KeptLogMass(const kernels::KeptMass& mass) {
  SORTITION_CHECK(mass.all != 0);
  if (mass.kept == 0) return -std::numeric_limits<float>::infinity();
  return float(double(Log2Clamped(mass.kept) - Log2Clamped(mass.all)) * kLn2PerUnit);
}

float Probability(uint32_t token_bits, uint64_t weight_sum, const Scale& scale) {
  return float(double(Weight(Distance(token_bits, scale))) / double(weight_sum));
}

}  // namespace sortition::law
