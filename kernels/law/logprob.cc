// The host's half of logprobs: IEEE double operations that round once each, and an integer logarithm.
#include "kernels/law/logprob.h"

#include <algorithm>
#include <bit>

#include "kernels/check.h"
#include "kernels/law/law.h"
#include "kernels/law/row_law.h"

namespace sortition::law {
namespace {

constexpr double kLn2PerUnit = 0x1.62e42fefa39efp-33;  // the double nearest to ln 2, times 2^-32

// 2^32 * log2(x), exact at powers of two, where Log2Raw is one unit low.
int64_t Log2Clamped(uint64_t x) {
  const int64_t whole = int64_t{63 - std::countl_zero(x)} << 32;
  return std::max(int64_t(Log2Raw(x)), whole);
}

}  // namespace

float Logprob(const kernels::Distribution& distribution, uint32_t token_bits, double temperature) {
  SORTITION_CHECK(distribution.weight_sum != 0);
  const double x = std::bit_cast<float>(token_bits);
  const double max = std::bit_cast<float>(distribution.max_bits);
  const double log_sum = double(Log2Clamped(distribution.weight_sum) - (int64_t{44} << 32)) * kLn2PerUnit;
  return float((x - max) / temperature - log_sum);
}

}  // namespace sortition::law
