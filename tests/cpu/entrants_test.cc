// Promises are kept: none falls short of the race key that comes out, or the race would leave out a winner.
#include "kernels/cpu/entrants.h"

#include <gtest/gtest.h>

#include <random>

#include "kernels/cpu/target.h"
#include "kernels/law/row_law.h"
#include "tests/support/scale.h"

namespace sortition::kernels::cpu {
namespace {

class EntrantsTest : public ::testing::TestWithParam<const Target*> {};

INSTANTIATE_TEST_SUITE_P(, EntrantsTest, ::testing::ValuesIn(RunnableTargets()),
                         [](const auto& info) { return std::string(info.param->name); });

// How far, in octaves, a promise may lie above what it stands for: the error of a logarithm taken from leading bits.
constexpr double kSlack = 0.0862 + 0.002;

TEST_P(EntrantsTest, BoundsHoldAndAreTight) {
  std::mt19937_64 random(11);
  TokenEntrants entrants;
  constexpr uint32_t kCount = 1000;
  entrants.Reserve(kCount);
  double least = 100;
  double most = -100;
  for (uint64_t n = 0; n < sortition::testing::Scaled(1000); ++n) {
    const law::DrawKey key = {uint32_t(random()), uint32_t(random()), uint32_t(random()), 0};
    for (uint32_t i = 0; i < kCount; ++i) {
      entrants.token.data()[i] = uint32_t(random() % kMaxVocabulary);
      entrants.t.data()[i] = i % 10 == 0 ? 0 : uint32_t(random() % law::kDeadFromDistance) >> (random() % 32);
      // Groups whose noise is small win; some have their token as owner.
      const int shift = int(random() % 30);
      entrants.group_high.data()[i] = uint32_t(random()) >> shift;
      entrants.group_low.data()[i] = uint32_t(random());
      if (i % 3 == 0) entrants.group_low.data()[i] = entrants.token.data()[i];
    }
    entrants.count = kCount;
    GetParam()->kernels.PromiseTokens(key, &entrants);
    for (uint32_t i = 0; i < kCount; ++i) {
      const uint32_t token = entrants.token.data()[i];
      const uint64_t word = law::WordOf(law::NoiseWords(token / 2, law::kTokenTag, key), token);
      ASSERT_EQ(entrants.Word(i), word);
      const uint64_t a = law::NegLog2(law::Uniform(entrants.GroupWord(i)));
      const uint64_t log = law::Owner(entrants.GroupWord(i)) == token % law::kGroupSize
                               ? law::OwnerLog(a)
                               : law::OtherLog(a, law::NegLog2(law::Uniform(word)));
      const int64_t race_key = law::SignedRaceKey(entrants.t.data()[i], log);
      ASSERT_GE(entrants.promise.data()[i], PromiseNeeded(race_key));
      // Where the noise is not so small that its leading bits run out.
      if (entrants.group_high.data()[i] < 1 << 24) continue;
      const double above = double(int64_t{entrants.promise.data()[i]} - PromiseNeeded(race_key)) / (1 << 23);
      least = std::min(least, above);
      most = std::max(most, above);
    }
  }
  EXPECT_GE(least, 0);
  // U log2(e) falls short of -log2(1 - U) without bound as U goes to 1, so large noise promises more than it gives.
  EXPECT_GT(most, kSlack);
}

TEST_P(EntrantsTest, DeadTokensHaveNoBound) {
  TokenEntrants entrants;
  entrants.Reserve(2);
  entrants.count = 2;
  for (uint32_t i = 0; i < 2; ++i) {
    entrants.token.data()[i] = i;
    entrants.group_low.data()[i] = 0;
    entrants.group_high.data()[i] = 1 << 20;
  }
  entrants.t.data()[0] = law::kDead;
  entrants.t.data()[1] = law::kDeadFromDistance - 1;
  GetParam()->kernels.PromiseTokens({1, 2, 3, 4}, &entrants);
  EXPECT_EQ(entrants.promise.data()[0], 0u);
  EXPECT_NE(entrants.promise.data()[1], 0u);
}

}  // namespace
}  // namespace sortition::kernels::cpu
