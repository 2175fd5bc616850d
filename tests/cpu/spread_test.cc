// SumSpread keeps the error that it promises: top-n-sigma's bounds rest on it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cpu/read.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/target.h"

namespace sortition::kernels::cpu {
namespace {

// The sums in (nearly) exact arithmetic.
struct Exact {
  uint32_t count = 0;
  long double sum = 0;
  long double sizes = 0;
  long double squares = 0;
};

Exact ExactOf(const std::vector<float>& logits, float lowest) {
  Exact exact;
  for (const float logit : logits) {
    if (logit <= -65504.0f) continue;
    const long double x = std::max(logit, lowest);
    ++exact.count;
    exact.sum += x;
    exact.sizes += std::fabs(x);
    exact.squares += x * x;
  }
  return exact;
}

TEST(Spread, WithinErrorOnEveryTarget) {
  constexpr uint32_t kVocabulary = 64 * 100;
  constexpr float kLowest = -16;
  std::mt19937_64 random(5);
  for (const float masked_share : {0.0f, 0.001f, 0.3f}) {
    std::normal_distribution<float> normal(-9, 4);
    std::vector<float> logits(kVocabulary);
    for (float& logit : logits) {
      const bool masked = std::uniform_real_distribution<float>(0, 1)(random) < masked_share;
      logit = masked ? -std::numeric_limits<float>::infinity() : normal(random);
    }
    const Exact exact = ExactOf(logits, kLowest);
    const RowParameters parameters;
    RowRequest request;
    request.logits = logits.data();
    request.live_vocabulary = kVocabulary;
    request.parameters = &parameters;
    for (const Target* target : RunnableTargets()) {
      Scratch scratch;
      const Row row = LayRow(request, {}, &scratch);
      std::vector<uint32_t> groups(row.groups);
      std::iota(groups.begin(), groups.end(), 0u);
      const Spread spread = target->kernels.SumSpread(row, groups.data(), row.groups, kLowest);
      EXPECT_EQ(spread.count, exact.count) << target->name;
      EXPECT_LE(std::fabs(spread.sum - exact.sum), kSpreadError * exact.sizes) << target->name;
      EXPECT_LE(std::fabs(spread.squares - exact.squares), kSpreadError * exact.squares) << target->name;
    }
  }
}

}  // namespace
}  // namespace sortition::kernels::cpu
