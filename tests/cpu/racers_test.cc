// Promises are kept: none falls short of the race key that comes out, or the race would leave out a winner.
#include "kernels/cpu/racers.h"

#include <gtest/gtest.h>

#include <random>

#include "kernels/cpu/target.h"
#include "kernels/law/row_law.h"
#include "tests/support/scale.h"

namespace sortition::kernels::cpu::racers_test {
namespace {

class RacersTest : public ::testing::TestWithParam<const Target*> {};

INSTANTIATE_TEST_SUITE_P(, RacersTest, ::testing::ValuesIn(RunnableTargets()),
                         [](const auto& info) { return std::string(info.param->name); });

// How far, in octaves, a promise may lie above the bound that it stands for: the error of a logarithm taken from
// leading bits.
constexpr double kSlack = 0.0862 + 0.002;

TEST_P(RacersTest, BoundsHoldAndAreTight) {
  std::mt19937_64 random(11);
  TokenRacers racers;
  constexpr uint32_t kCount = 1000;
  racers.Reserve(kCount);
  double least = 100;
  double most = -100;
  for (uint64_t n = 0; n < sortition::testing::Scaled(1000); ++n) {
    const law::DrawKey key = {uint32_t(random()), uint32_t(random()), uint32_t(random()), 0};
    for (uint32_t i = 0; i < kCount; ++i) {
      racers.token.data()[i] = uint32_t(random() % kMaxVocabulary);
      racers.t.data()[i] = i % 10 == 0 ? 0 : uint32_t(random() % law::kDeadFromDistance) >> (random() % 32);
      // Groups whose noise is small win; some have their token as owner.
      const int shift = int(random() % 30);
      racers.group_high.data()[i] = uint32_t(random()) >> shift;
      racers.group_low.data()[i] = uint32_t(random());
      if (i % 3 == 0) racers.group_low.data()[i] = racers.token.data()[i];
    }
    racers.count = kCount;
    GetParam()->kernels.PromiseTokens(key, &racers);
    for (uint32_t i = 0; i < kCount; ++i) {
      const uint32_t token = racers.token.data()[i];
      const uint64_t word = law::WordOf(law::NoiseWords(token / 2, law::kTokenTag, key), token);
      ASSERT_EQ(racers.Word(i), word);
      const uint64_t a = law::NegLog2(law::Uniform(racers.GroupWord(i)));
      const uint64_t log = law::Owner(racers.GroupWord(i)) == token % law::kGroupSize
                               ? law::OwnerLog(a)
                               : law::OtherLog(a, law::NegLog2(law::Uniform(word)));
      const int64_t race_key = law::SignedRaceKey(racers.t.data()[i], log);
      ASSERT_GE(racers.promise.data()[i], PromiseNeeded(race_key));
      // Where the noise is not so small that its leading bits run out.
      if (racers.group_high.data()[i] < 1 << 24) continue;
      const double above = double(int64_t{racers.promise.data()[i]} - PromiseNeeded(race_key)) / (1 << 23);
      least = std::min(least, above);
      most = std::max(most, above);
    }
  }
  EXPECT_GE(least, 0);
  // U log2(e) falls short of -log2(1 - U) without bound as U goes to 1, so large noise promises more than it gives.
  EXPECT_GT(most, kSlack);
}

TEST_P(RacersTest, DeadTokensHaveNoBound) {
  TokenRacers racers;
  racers.Reserve(2);
  racers.count = 2;
  for (uint32_t i = 0; i < 2; ++i) {
    racers.token.data()[i] = i;
    racers.group_low.data()[i] = 0;
    racers.group_high.data()[i] = 1 << 20;
  }
  racers.t.data()[0] = law::kDead;
  racers.t.data()[1] = law::kDeadFromDistance - 1;
  GetParam()->kernels.PromiseTokens({1, 2, 3, 4}, &racers);
  EXPECT_EQ(racers.promise.data()[0], 0u);
  EXPECT_NE(racers.promise.data()[1], 0u);
}

}  // namespace
}  // namespace sortition::kernels::cpu::racers_test
