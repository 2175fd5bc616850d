// The way from distances back to keys.
#include "kernels/cpu/row_scale.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "kernels/law/parameters.h"
#include "kernels/law/row_law.h"
#include "tests/support/scale.h"

namespace sortition::kernels::cpu {
namespace {

bool IsWithin(uint32_t key, uint32_t bound, const law::Scale& scale) {
  const uint32_t t = law::Distance(law::KeyBits(key), scale);
  return t != law::kDead && t <= bound;
}

TEST(RowScale, FirstKeyWithinIsTheFirst) {
  std::mt19937_64 random(7);
  for (uint64_t n = 0; n < sortition::testing::Scaled(1'000'000); ++n) {
    static constexpr float kTemperatures[] = {0.01f, 0.02f, 0.5f, 0.8f, 1, 2, 30, 100};
    RowParameters parameters;
    law::Compile({.temperature = kTemperatures[random() % 8]}, &parameters);
    const float max = float(int32_t(random() % 131007) - 65503) / float(1 << (random() % 24));
    const uint32_t max_key = law::Key(law::CanonicalBits(max));
    const law::Scale scale = law::ScaleAt(parameters, law::KeyBits(max_key));
    const auto bound = uint32_t(random() % law::kDeadFromDistance) >> (random() % 32);
    const uint32_t first = FirstKeyWithin(bound, scale);
    ASSERT_LE(first, max_key);
    ASSERT_TRUE(IsWithin(first, bound, scale)) << max << " " << bound;
    ASSERT_FALSE(IsWithin(first - 1, bound, scale)) << max << " " << bound;
  }
}

TEST(RowScale, KnowsWhereTokensDieAndWhereWeightsEnd) {
  const RowParameters parameters;
  const uint32_t max_key = law::Key(std::bit_cast<uint32_t>(12.5f));
  const RowScale row = ScaleOf(parameters, max_key);
  EXPECT_NE(law::Distance(law::KeyBits(row.first_live_key), row.scale), law::kDead);
  EXPECT_EQ(law::Distance(law::KeyBits(row.first_live_key - 1), row.scale), law::kDead);
  EXPECT_LT(law::Distance(law::KeyBits(row.first_weighted_key), row.scale), 45u << 26);
  EXPECT_EQ(law::Weight(law::Distance(law::KeyBits(row.first_weighted_key - 1), row.scale)), 0u);
}

}  // namespace
}  // namespace sortition::kernels::cpu
