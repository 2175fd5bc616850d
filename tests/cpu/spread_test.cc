// SumSpread keeps the error that it promises: top-n-sigma's bounds rest on it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cpu/read.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/target.h"

namespace sortition::kernels::cpu::spread_test {
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

void ExpectNear(const Spread& spread, const Exact& exact) {
  EXPECT_EQ(spread.count, exact.count);
  EXPECT_LE(std::fabs(spread.sum - exact.sum), kSpreadError * exact.sizes);
  EXPECT_LE(std::fabs(spread.squares - exact.squares), kSpreadError * exact.squares);
}

RowRequest MakeRequest(const std::vector<float>& logits) {
  static const RowParameters parameters;
  RowRequest request;
  request.logits = logits.data();
  request.live_vocabulary = uint32_t(logits.size());
  request.parameters = &parameters;
  return request;
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
    const RowRequest request = MakeRequest(logits);
    for (const Target* target : RunnableTargets()) {
      SCOPED_TRACE(target->name);
      Scratch scratch;
      const RowView row = LayRow(request, {}, &scratch);
      ExpectNear(target->kernels.SumSpread(row, kLowest), ExactOf(logits, kLowest));
    }
  }
}

// Logits that are masked or too small, in the first groups or behind those that the first pass sums.
TEST(Spread, OfFirstPassWithinErrorOnEveryTarget) {
  constexpr float kLowest = -32;
  std::mt19937_64 random(6);
  std::normal_distribution<float> normal(-1, 2);
  std::vector<float> logits(64 * 100 + 10);
  for (float& logit : logits) logit = normal(random);
  for (const size_t odd_token : {size_t{0}, size_t{5000}, logits.size() - 1}) {
    for (const float odd : {0.0f, kLowest, -33.0f, -1e9f, -std::numeric_limits<float>::infinity()}) {
      std::vector<float> row_logits = logits;
      row_logits[odd_token] = odd;
      const RowRequest request = MakeRequest(row_logits);
      for (const Target* target : RunnableTargets()) {
        SCOPED_TRACE(::testing::Message() << target->name << ", " << odd << " at " << odd_token);
        Scratch scratch;
        RowOutput answer;
        RowView row = LayRow(request, {}, &scratch);
        row.sums_logits = true;
        ASSERT_TRUE(ReadRow(target->kernels, request, &scratch, &row, &answer));
        ASSERT_GE(row.spread.groups, 100 - 16);
        const bool is_summed = odd_token < row.spread.groups * law::kGroupSize;
        EXPECT_EQ(row.spread.largest_square < kLowest * kLowest, !is_summed || odd == 0);
        ExpectNear(target->kernels.SumSpread(row, kLowest), ExactOf(row_logits, kLowest));
      }
    }
  }
}

}  // namespace
}  // namespace sortition::kernels::cpu::spread_test
