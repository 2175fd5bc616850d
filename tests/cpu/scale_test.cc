// The way from distances back to keys.
#include "kernels/cpu/scale.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "kernels/cpu/sent_from.h"
#include "kernels/law/parameters.h"
#include "kernels/law/row_law.h"
#include "tests/support/scale.h"

namespace sortition::kernels::cpu::scale_test {
namespace {

bool IsWithin(uint32_t key, law::Bound bound, const law::Scale& scale) {
  return law::IsWithin(law::Distance(law::KeyBits(key), scale), bound);
}

TEST(RowScale, FirstKeyWithinIsFirst) {
  std::mt19937_64 random(7);
  for (uint64_t n = 0; n < sortition::testing::Scaled(1'000'000); ++n) {
    static constexpr float kTemperatures[] = {0.01f, 0.02f, 0.5f, 0.8f, 1, 2, 30, 100};
    RowParameters parameters;
    law::Compile({.temperature = kTemperatures[random() % 8]}, &parameters);
    const float max = float(int32_t(random() % 131007) - 65503) / float(1 << (random() % 24));
    const uint32_t max_key = law::Key(law::CanonicalBits(max));
    const law::Scale scale = law::ScaleAt(parameters, law::KeyBits(max_key));
    const uint32_t farthest = uint32_t(random() % law::kDeadFromDistance) >> (random() % 32);
    const law::Bound bound = law::MakeBound(farthest);
    const uint32_t first = FirstKeyWithin(bound, max_key, scale);
    ASSERT_LE(first, max_key);
    ASSERT_TRUE(IsWithin(first, bound, scale)) << max << " " << farthest;
    ASSERT_FALSE(IsWithin(first - 1, bound, scale)) << max << " " << farthest;
  }
}

// A shape with a curve, or without one, at the temperature or smoothed; and some bound.
struct Shaped {
  law::Shape shape;
  uint32_t max_key;
  law::Bound bound;
};
Shaped RandomShape(std::mt19937_64* random) {
  const auto number = [&] { return std::ldexp(float((*random)() % 1000 + 1), int((*random)() % 24) - 16); };
  RowParameters parameters;
  law::Compile({.temperature = 0.5f + float((*random)() % 8)}, &parameters);
  const float max = float(int32_t((*random)() % 131007) - 65503) / float(1 << ((*random)() % 24));
  const uint32_t max_bits = law::CanonicalBits(max);
  law::Shape shape = law::PlainShape(max_bits);
  shape.temperature = {parameters.multiplier, parameters.exponent, parameters.window};
  shape.scale = law::ScaleFrom(max_bits, shape);
  if ((*random)() % 4 != 0) {
    const uint32_t square = (*random)() % 4 == 0 ? 0 : std::bit_cast<uint32_t>(number());
    const uint32_t cube = square != 0 && (*random)() % 2 == 0 ? 0 : std::bit_cast<uint32_t>(number());
    shape = law::SmoothedShape(shape, max_bits, square, cube);
  }
  const uint32_t farthest = uint32_t((*random)() % law::kDeadFromDistance) >> ((*random)() % 32);
  return {shape, law::Key(max_bits), law::MakeBound(farthest)};
}

TEST(RowScale, FirstKeyOfShapesIsTheLaws) {
  std::mt19937_64 random(11);
  for (uint64_t n = 0; n < sortition::testing::Scaled(300'000); ++n) {
    const auto [shape, max_key, bound] = RandomShape(&random);
    const uint32_t expected = law::FirstKeyKept(law::kCutWithin, bound, max_key, shape);
    const uint32_t first = FirstKeyWithin(bound, max_key, MakeRowScale(shape, max_key));
    ASSERT_EQ(std::max(first, law::kLowestKey), expected) << n;
  }
}

TEST(RowScale, FirstKeyWithinDepthIsTheLaws) {
  std::mt19937_64 random(12);
  for (uint64_t n = 0; n < sortition::testing::Scaled(300'000); ++n) {
    const auto [shape, max_key, bound] = RandomShape(&random);
    const law::Shape unit = law::UnitShape(shape, law::KeyBits(max_key));
    ASSERT_EQ(FirstKeyWithinDepth(bound, max_key, MakeRowScale(unit, max_key)),
              law::FirstKeyKept(law::kCutDepth, bound, max_key, unit))
        << n;
  }
}

TEST(RowScale, LogitBelowIsSlightlyBelow) {
  std::mt19937_64 random(8);
  for (uint64_t n = 0; n < sortition::testing::Scaled(1'000'000); ++n) {
    static constexpr float kTemperatures[] = {0.01f, 0.02f, 0.5f, 0.8f, 1, 2, 30, 100};
    RowParameters parameters;
    law::Compile({.temperature = kTemperatures[random() % 8]}, &parameters);
    const float max = float(int32_t(random() % 131007) - 65503) / float(1 << (random() % 24));
    const uint32_t max_bits = law::CanonicalBits(max);
    const RowScale row = MakeRowScale(parameters, law::Key(max_bits));
    const auto t = uint32_t(random() % law::kDeadFromDistance) >> (random() % 32);
    const float below = LogitBelow(std::bit_cast<float>(max_bits), float(t), row);
    if (below <= -65504) continue;
    const uint32_t distance = law::Distance(law::CanonicalBits(below), row.scale);
    ASSERT_GT(distance, t) << max;
    // The slack is a few millionths of the window of 64 octaves, and of the largest logit.
    if (std::abs(max) < 100 && parameters.temperature >= 0.5 && distance != law::kDead) {
      ASSERT_LT(distance - t, 1u << 19) << max;
    }
  }
}

TEST(SentFrom, AgreesWithKeys) {
  std::mt19937_64 random(9);
  const auto expect = [](uint32_t bits, uint32_t key) {
    const bool by_key = law::Key(law::Canonical(bits)) >= key;
    ASSERT_EQ(std::bit_cast<float>(bits) >= SentFrom(key), by_key) << std::hex << bits << " " << key;
  };
  static constexpr uint32_t kEdges[] = {0,          0x80000000, 0x21800000, 0xa1800000, 0x21ffffff, 0xa1ffffff,
                                        0x477fdfff, 0xc77fe000, 0xc77fdfff, 0xff800000, 0x00000001, 0x80000001};
  for (uint64_t n = 0; n < sortition::testing::Scaled(3'000'000); ++n) {
    const auto near = [&](uint32_t bits) { return uint32_t(bits + random() % 9 - 4); };
    const uint32_t bits = n % 2 == 0 ? near(kEdges[random() % std::size(kEdges)]) : uint32_t(random());
    if (law::IsNan(bits) || law::IsTooLarge(bits)) continue;
    const uint32_t other = n % 3 == 0 ? near(kEdges[random() % std::size(kEdges)]) : near(bits);
    expect(bits, std::max(1u, n % 5 == 0 ? uint32_t(random()) : law::Key(other)));
  }
  EXPECT_TRUE(std::isinf(SentFrom(~0u)));
}

TEST(RowScale, KnowsDeadTokensAndZeroWeights) {
  const RowParameters parameters;
  const uint32_t max_key = law::Key(std::bit_cast<uint32_t>(12.5f));
  const RowScale row = MakeRowScale(parameters, max_key);
  EXPECT_NE(law::Distance(law::KeyBits(row.first_live_key), row.scale), law::kDead);
  EXPECT_EQ(law::Distance(law::KeyBits(row.first_live_key - 1), row.scale), law::kDead);
  EXPECT_LT(law::Distance(law::KeyBits(row.first_weighted_key), row.scale), 45u << 26);
  EXPECT_EQ(law::Weight(law::Distance(law::KeyBits(row.first_weighted_key - 1), row.scale)), 0u);
}

}  // namespace
}  // namespace sortition::kernels::cpu::scale_test
