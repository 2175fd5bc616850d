// Sums over rows equal the sums of the law's weights and moments, on every target.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cpu/read.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/target.h"
#include "kernels/law/parameters.h"
#include "tests/support/scale.h"

namespace sortition::kernels::cpu::weigh_test {
namespace {

using sortition::testing::Scaled;

uint32_t KeyOf(float logit) { return law::Key(law::Canonical(std::bit_cast<uint32_t>(logit))); }

// Half of the margin that kNearError promises is left to processors that do not round to nearest.
void ExpectNear(double near, uint64_t sum, uint32_t tokens) {
  ASSERT_NEAR(near, double(sum) * 0x1p-44, double(sum) * 0x1p-44 * kNearError / 2 + tokens * kNearLoss);
}

void ExpectNearMoments(const NearMomentSums& near, const Moments& sums, uint32_t tokens, MomentsWanted wanted) {
  ASSERT_NO_FATAL_FAILURE(ExpectNear(near.sum, sums.sum, tokens));
  if (wanted == MomentsWanted::kSum) return;
  const uint64_t other = wanted == MomentsWanted::kSquare ? sums.square : sums.moment;
  const NearMomentSums exact = {double(sums.sum) * 0x1p-44, double(other) * 0x1p-42};
  ASSERT_NEAR(near.other, exact.other, NearOtherError(exact, 0, wanted) / 2 + NearOtherError({}, tokens, wanted));
}

// Compares the sums over the logits' weights and moments on every target with the law's, some groups at a time.
void ExpectLawsSums(const std::vector<float>& logits, float max, float temperature, uint32_t groups_a_sum) {
  RowParameters parameters;
  law::Compile({.temperature = temperature}, &parameters);
  RowRequest request;
  request.logits = logits.data();
  request.live_vocabulary = uint32_t(logits.size());
  request.parameters = &parameters;
  const RowScale scale = MakeRowScale(parameters, KeyOf(max));
  std::vector<uint32_t> groups(GroupsOf(request.live_vocabulary));
  std::iota(groups.begin(), groups.end(), 0u);
  for (uint32_t first = 0; first < groups.size(); first += groups_a_sum) {
    const uint32_t count = std::min(groups_a_sum, uint32_t(groups.size()) - first);
    const size_t end_id = std::min(size_t{first + count} * law::kGroupSize, logits.size());
    Moments expected = {};
    const uint32_t high = std::max(1u, KeyOf(logits[(first * law::kGroupSize + end_id) / 2]));
    uint64_t above = 0;
    for (size_t id = size_t{first} * law::kGroupSize; id < end_id; ++id) {
      const uint32_t bits = law::Canonical(std::bit_cast<uint32_t>(logits[id]));
      const uint32_t t = law::Distance(bits, scale.scale);
      expected.sum += law::Weight(t);
      if (law::Key(bits) >= high) above += law::Weight(t);
      expected.moment += law::Moment(t);
      expected.square += law::SquaredWeight(t);
      expected.count += bits != law::kMaskedBits;
    }
    for (const Target* target : RunnableTargets()) {
      Scratch scratch;
      const RowView row = LayRow(request, {}, &scratch);
      const auto moments = [&](MomentsWanted wanted) {
        return target->kernels.SumMoments(row, &groups[first], count, kLastLive, scale, wanted);
      };
      SCOPED_TRACE(::testing::Message() << target->name << " max " << max << " temperature " << temperature << " group "
                                        << first);
      ASSERT_EQ(target->kernels.SumWeights(row, &groups[first], count, kLastLive, scale), expected.sum);
      uint64_t split_above;
      ASSERT_EQ(target->kernels.SplitWeights(row, &groups[first], count, 1, high, scale, &split_above), expected.sum);
      ASSERT_EQ(split_above, above);
      if (HasNearWeights(scale)) {
        const Candidate end = Candidate::Of(high, ~0u);
        const NearSums near = target->kernels.NearWeights(row, &groups[first], count, end, scale);
        ASSERT_NO_FATAL_FAILURE(ExpectNear(near.all, expected.sum, count * law::kGroupSize));
        ASSERT_NO_FATAL_FAILURE(ExpectNear(near.before, above, count * law::kGroupSize));
      }
      if (HasNearWeights(scale)) {
        for (const MomentsWanted wanted : {MomentsWanted::kSum, MomentsWanted::kMoment, MomentsWanted::kSquare}) {
          const NearMomentSums near = target->kernels.NearMoments(row, &groups[first], count, scale, wanted);
          ASSERT_NO_FATAL_FAILURE(ExpectNearMoments(near, expected, count * law::kGroupSize, wanted));
        }
      }
      ASSERT_EQ(moments(MomentsWanted::kSum).sum, expected.sum);
      const Moments counted = moments(MomentsWanted::kMomentAndCount);
      ASSERT_EQ(counted.sum, expected.sum);
      ASSERT_EQ(counted.moment, expected.moment);
      ASSERT_EQ(counted.count, expected.count);
      ASSERT_EQ(moments(MomentsWanted::kMoment).moment, expected.moment);
      ASSERT_EQ(moments(MomentsWanted::kSquare).square, expected.square);
    }
  }
}

// At this temperature a logit is an octave, and distances are 2^28 times the difference of logits, in units of 2^-26.
// Logits of few bits below the binary point meet every fraction of an octave that is a multiple of 2^-24.
TEST(Weighing, EveryFractionOfAnOctave) {
  constexpr uint32_t kFractions = 1 << 24;
  constexpr uint32_t kTokens = 1 << 16;
  const uint64_t rows = Scaled(kFractions / kTokens);
  for (const float octaves : {0.0f, 14.0f, 29.0f}) {
    for (uint64_t n = 0; n < rows; ++n) {
      std::vector<float> logits(kTokens);
      const auto first = uint32_t(n * (kFractions / kTokens / rows)) * kTokens;
      for (uint32_t i = 0; i < kTokens; ++i) logits[i] = -float(first + i) * 0x1p-24f;
      ASSERT_NO_FATAL_FAILURE(ExpectLawsSums(logits, octaves, 1.442695f, kTokens / law::kGroupSize));
    }
  }
}

TEST(Weighing, RowsOfEveryKind) {
  std::mt19937_64 random(11);
  for (uint64_t n = 0; n < Scaled(2'000); ++n) {
    static constexpr float kTemperatures[] = {0.01f, 0.1f, 0.7f, 1, 1.5f, 10, 100};
    const float temperature = kTemperatures[random() % 7];
    const float max = std::ldexp(float(int32_t(random() % 2'000'001) - 1'000'000), int(random() % 20) - 24);
    std::vector<float> logits(1 + random() % 1000);
    std::exponential_distribution<float> below(1 / (temperature * float(1 << (random() % 7))));
    for (float& logit : logits) {
      logit = max - below(random);
      if (random() % 16 == 0) logit = std::min(max, -std::numeric_limits<float>::infinity());
      if (random() % 16 == 1) logit = std::min(max, -float(random() % 70'000));
      if (random() % 16 == 2) logit = max;
    }
    ASSERT_NO_FATAL_FAILURE(ExpectLawsSums(logits, max, temperature, 1));
  }
}

TEST(Weighing, NearSumsCutTiesByLowestId) {
  const std::vector<float> logits(1000, 3.5f);
  RowParameters parameters;
  RowRequest request;
  request.logits = logits.data();
  request.live_vocabulary = uint32_t(logits.size());
  const RowScale scale = MakeRowScale(parameters, KeyOf(3.5f));
  std::vector<uint32_t> groups(GroupsOf(request.live_vocabulary));
  std::iota(groups.begin(), groups.end(), 0u);
  for (const Target* target : RunnableTargets()) {
    Scratch scratch;
    const RowView row = LayRow(request, {}, &scratch);
    for (uint32_t token = 0; token < logits.size(); token += 7) {
      const Candidate end = Candidate::Of(KeyOf(3.5f), token);
      const NearSums near = target->kernels.NearWeights(row, groups.data(), uint32_t(groups.size()), end, scale);
      ASSERT_NEAR(near.before, token, 0.5) << target->name;
    }
  }
}

// The largest sums that 2^20 - 1 tokens have.
TEST(Weighing, EqualTokens) {
  const std::vector<float> logits((1 << 20) - 1, 3.5f);
  ExpectLawsSums(logits, 3.5f, 1, uint32_t(logits.size() / law::kGroupSize + 1));
}

}  // namespace
}  // namespace sortition::kernels::cpu::weigh_test
