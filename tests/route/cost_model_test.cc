// Learning of costs.
#include "service/route/cost_model.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/route/fixtures.h"

namespace sortition::service::cost_model_test {
namespace {

double Truth(const Work& work) {
  return 300e-6 + 40e-6 * work.rows + (0.5e-9 + (work.moves ? 2e-9 : 0)) * double(work.bytes);
}

TEST(CostModel, PriorHoldsUntilMeasured) {
  const CostModel model({1e-3, 1e-4, 1e-9, 1e-9});
  EXPECT_DOUBLE_EQ(model.Seconds({10, 1000, false}, kStart), 1e-3 + 10e-4 + 1000e-9);
  EXPECT_DOUBLE_EQ(model.Seconds({10, 1000, true}, kStart), 1e-3 + 10e-4 + 2000e-9);
}

// The prior is wrong by factors of 0.2 to 20.
TEST(CostModel, LearnsEachTerm) {
  std::mt19937_64 random(1);
  CostModel model;
  for (int i = 0; i < 200; ++i) {
    const uint32_t rows = 1 + uint32_t(random() % 64);
    const Work work = {rows, rows * (1000 + random() % 500'000), random() % 2 == 0};
    const double noise = 0.95 + 0.1 * double(random() % 1000) / 1000;
    model.Observe(work, absl::Seconds(Truth(work) * noise), kStart);
  }
  for (const Work& work : {Work{1, 2000, false}, Work{1, 500'000, true}, Work{64, 6'400'000, false}}) {
    EXPECT_NEAR(model.Seconds(work, kStart) / Truth(work), 1, 0.15) << work.rows;
  }
}

TEST(CostModel, OneKindOfBatchSufficesForThatKind) {
  CostModel model;
  const Work work = {16, 4'000'000, false};
  for (int i = 0; i < 10; ++i) model.Observe(work, absl::Milliseconds(90), kStart);
  EXPECT_NEAR(model.Seconds(work, kStart), 0.090, 0.002);
  // No learned cost makes another batch's cost negative.
  EXPECT_GT(model.Seconds({1, 1, false}, kStart), 0);
}

TEST(CostModel, FollowsChangeWithinTenBatches) {
  CostModel model;
  const Work work = {16, 4'000'000, false};
  for (int i = 0; i < 50; ++i) model.Observe(work, absl::Milliseconds(2), kStart);
  for (int i = 0; i < 10; ++i) model.Observe(work, absl::Milliseconds(40), kStart);
  EXPECT_GT(model.Seconds(work, kStart), 0.020);
}

TEST(CostModel, OldMeasurementsFade) {
  CostModel model;
  const Work work = {1, 1000, false};
  const double before = model.Seconds(work, kStart);
  for (int i = 0; i < 10; ++i) model.Observe(work, absl::Seconds(1), kStart);
  EXPECT_NEAR(model.Seconds(work, kStart), 1, 0.02);
  EXPECT_NEAR(model.Seconds(work, kStart + absl::Seconds(20)), 0.5, 0.02);
  EXPECT_NEAR(model.Seconds(work, kStart + absl::Hours(1)), before, 1e-6);
  model.MakePrior();
  EXPECT_NEAR(model.Seconds(work, kStart + absl::Hours(1)), 1, 0.02);
}

}  // namespace
}  // namespace sortition::service::cost_model_test
