// Min-k from the first 32 tokens, where a bound on the other steps says that they suffice.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cpu/sample_row.h"
#include "kernels/law/parameters.h"
#include "kernels/law/reference.h"
#include "tests/support/scale.h"

namespace sortition::kernels::cpu::min_k_test {
namespace {

constexpr uint32_t kFew = 32;
constexpr uint32_t kAll = 256;

decltype(Kernels::LowerBoundOfNth) g_lower_bound;
int g_bounds;  // how often a bound of kAll tokens was looked for

// Samples the row on each target and expects the reference's output. Returns true if the first few tokens decided.
// `request`: its changes.
bool FewDecide(const std::vector<float>& logits, float tau, bool is_smoothed = false, RowRequest request = {}) {
  RowParameters parameters;
  law::SamplingParameters options = {.temperature = 0.8f, .min_k = true, .min_k_tau = tau};
  if (is_smoothed) options.smoothing_factor = 0.3f;
  law::Compile(options, &parameters);
  parameters.kept_count = true;
  request.logits = logits.data();
  request.live_vocabulary = uint32_t(logits.size());
  request.parameters = &parameters;
  request.noise = {.seed = logits.size(), .position = 1, .stream = 0};
  const RowOutput expected = law::SampleRowReference(request);
  for (const Target* target : RunnableTargets()) {
    Target counted = *target;
    g_lower_bound = counted.kernels.LowerBoundOfNth;
    g_bounds = 0;
    counted.kernels.LowerBoundOfNth = [](const uint32_t* keys, uint32_t count, uint32_t n, uint32_t floor,
                                         uint32_t* buffer) {
      g_bounds += n == kAll;
      return g_lower_bound(keys, count, n, floor, buffer);
    };
    Scratch scratch;
    RowOutput answer;
    SampleRow(counted, request, &scratch, &answer);
    EXPECT_EQ(answer, expected) << target->name;
  }
  return g_bounds == 1;
}

// A token in each of `steps` + 1 groups, the first with the logit 0, each next one a step lower.
std::vector<float> Descending(const std::vector<float>& steps) {
  std::vector<float> logits((steps.size() + 1) * 64, -300.0f);
  float logit = 0;
  for (size_t i = 0; i < steps.size(); ++i) logits[(i + 1) * 64 + i % 64] = logit -= steps[i];
  logits[0] = 0;
  return logits;
}

// Steps of 0 but for two: the first one, and one behind the few. A bound that is tighter by a unit, or by a token,
// would take the first where the other is steeper.
TEST(MinK, BoundOnLaterStepsHoldsAndIsMet) {
  std::vector<float> steps(300);
  for (const float unit : {0x1p-16f, -0x1p-16f, 0.0f}) {
    steps[0] = 0.125f;
    steps[kFew - 1] = kFew * steps[0] + unit;
    EXPECT_EQ(FewDecide(Descending(steps), 0), unit <= 0) << unit;
  }
  steps[kFew - 1] = 0;
  steps[kFew + 1] = 34 * steps[0] + 0x1p-16f;
  EXPECT_FALSE(FewDecide(Descending(steps), 0));
}

TEST(MinK, RangeOpenWithinItsBoundLooksAtAll) {
  std::vector<float> steps(300);
  steps[0] = 1;
  EXPECT_TRUE(FewDecide(Descending(steps), 1.5f));
  steps[kAll - 2] = 0.25f;
  EXPECT_TRUE(FewDecide(Descending(steps), 1.5f));
  EXPECT_FALSE(FewDecide(Descending(steps), 2));
}

TEST(MinK, FewerTokensThanItLooksAtAreNotBounded) {
  for (const size_t steps : {0, 1, 30, 31, 32, 254}) {
    EXPECT_FALSE(FewDecide(Descending(std::vector<float>(steps, 0.25f)), 3)) << steps;
  }
}

TEST(MinK, RandomRowsEqualTheReference) {
  std::mt19937_64 random(11);
  constexpr uint64_t kRows = 200;
  const uint64_t rows = sortition::testing::Scaled(kRows);
  uint64_t few = 0;
  for (uint64_t n = 0; n < rows; ++n) {
    SCOPED_TRACE(n);
    std::vector<float> logits(1 + random() % 60'000);
    static constexpr float kSpreads[] = {0.001f, 0.3f, 3};
    std::normal_distribution<float> normal(0, kSpreads[n % 3]);
    for (float& logit : logits) logit = normal(random);
    for (uint64_t i = 0; n % 2 == 0 && i < 300; ++i) {
      logits[random() % logits.size()] = 10 - 1.5f * std::log(float(1 + i));
    }
    RowRequest changes;
    std::vector<uint32_t> allowed((logits.size() + 31) / 32);
    for (uint32_t& word : allowed) word = uint32_t(random() & random());
    if (n % 7 < 2) changes.allowed_bits = allowed.data();
    std::vector<LogitEdit> edits;
    for (uint32_t id = uint32_t(random() % 64); id < logits.size(); id += 1 + uint32_t(random() % 300)) {
      edits.push_back({.token = id, .penalty = law::CanonicalBits(float(random() % 5) - 3)});
    }
    if (n % 3 == 1) changes.edits = edits;
    static constexpr float kTau[] = {3, 0, 30, 100};
    few += FewDecide(logits, kTau[n % 4], n % 5 == 0, changes);
    if (HasFailure()) return;
  }
  if (rows < kRows) return;
  EXPECT_GT(few, rows / 4);
  EXPECT_LT(few, rows);
}

}  // namespace
}  // namespace sortition::kernels::cpu::min_k_test
