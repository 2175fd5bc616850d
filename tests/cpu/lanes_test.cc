// The law in vectors is the law's text, lane by lane, on every target that this machine can run.
#include "tests/cpu/lanes.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstring>
#include <random>

#include "kernels/law/parameters.h"
#include "kernels/law/row_law.h"
#include "tests/support/scale.h"

namespace sortition::kernels::cpu::lanes_test {
namespace {

using sortition::testing::Scaled;
using Batch = std::array<uint32_t, kBatch>;

class LanesTest : public ::testing::TestWithParam<Lanes> {
 protected:
  // Any bits; half of them are logits as models have them.
  uint32_t Bits() {
    const auto word = uint32_t(random_());
    if (random_() % 2 == 0) return word;
    return std::bit_cast<uint32_t>(float(int32_t(word >> 12) - (1 << 19)) / float(1 << (random_() % 20)));
  }

  // Canonical bits of a logit that is neither masked nor too large.
  uint32_t LiveBits() {
    for (;;) {
      const uint32_t bits = Bits();
      if (!law::IsNan(bits) && !law::IsTooLarge(bits) && law::Canonical(bits) != law::kMaskedBits) {
        return law::Canonical(bits);
      }
    }
  }

  std::mt19937_64 random_{20240607};
};

INSTANTIATE_TEST_SUITE_P(, LanesTest, ::testing::ValuesIn(RunnableLanes()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(LanesTest, EverySixteenBitElementIsWidened) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (uint32_t first = 0; first < 1 << 16; first += kBatch) {
      // Off by one element, so that nothing is aligned.
      std::array<uint16_t, kBatch + 1> elements;
      for (uint32_t i = 0; i < kBatch; ++i) elements[i + 1] = uint16_t(first + i);
      Batch bits;
      GetParam().load(dtype, elements.data() + 1, bits.data());
      for (uint32_t i = 0; i < kBatch; ++i) {
        const uint32_t expected = law::Widen(dtype, first + i);
        if (law::IsNan(expected))
          continue;  // no kernel loads one but ReadMaxima, which looks at the elements themselves
        ASSERT_EQ(law::IsTooLarge(bits[i]), law::IsTooLarge(expected)) << first + i;
        if (law::IsTooLarge(expected)) continue;
        ASSERT_EQ(law::Canonical(bits[i]), law::Canonical(expected)) << first + i;
      }
    }
  }
}

TEST_P(LanesTest, Key) {
  // Every boundary from both sides, then anything.
  const uint32_t edges[] = {0,          0x80000000, 0x217fffff, 0x21800000, 0xa17fffff, 0xa1800000, 0x477fdfff,
                            0xc77fdfff, 0xc77fe000, 0xc77fe001, 0xff7fffff, 0xff800000, 1,          0x80000001};
  for (uint64_t n = 0; n < Scaled(200'000); ++n) {
    Batch bits, keys;
    for (uint32_t& b : bits) {
      do b = n == 0 ? edges[(&b - bits.data()) % std::size(edges)] : Bits();
      while (law::IsNan(b) || law::IsTooLarge(b));
    }
    GetParam().key(bits.data(), keys.data());
    for (uint32_t i = 0; i < kBatch; ++i) ASSERT_EQ(keys[i], law::Key(law::Canonical(bits[i]))) << bits[i];
  }
}

TEST_P(LanesTest, KeyBits) {
  for (uint64_t n = 0; n < Scaled(20'000); ++n) {
    Batch keys, bits;
    for (uint32_t& key : keys) key = law::Key(LiveBits());
    GetParam().key_bits(keys.data(), bits.data());
    for (uint32_t i = 0; i < kBatch; ++i) ASSERT_EQ(bits[i], law::KeyBits(keys[i])) << keys[i];
  }
}

// Temperatures of every kind, maxima of every size, and keys at and around where distances become dead and weights 0.
TEST_P(LanesTest, DistanceAndWeight) {
  for (uint64_t n = 0; n < Scaled(40'000); ++n) {
    RowParameters parameters;
    static constexpr float kTemperatures[] = {0.01f, 0.1f, 0.7f, 1, 1.5f, 10, 100};
    law::Compile({.temperature = kTemperatures[random_() % 7]}, &parameters);
    const uint32_t max_key = law::Key(LiveBits());
    const RowScale scale = MakeRowScale(parameters, max_key);
    Batch keys, t;
    for (uint32_t i = 0; i < kBatch; ++i) {
      const uint32_t near = i % 4 == 0 ? scale.first_live_key : i % 4 == 1 ? scale.first_weighted_key : max_key;
      uint32_t key = i % 4 == 3 ? law::Key(LiveBits()) : near - 8 + uint32_t(random_() % 16);
      if (i % 8 == 7) key = 0;
      keys[i] = key == 0 ? 0 : std::min(key, max_key);
    }
    GetParam().distance(keys.data(), scale, t.data());
    std::array<uint64_t, kBatch> weights;
    GetParam().weight(keys.data(), scale, weights.data());
    Batch bits;
    for (uint32_t i = 0; i < kBatch; ++i) bits[i] = law::KeyBits(keys[i]);
    std::array<uint64_t, kBatch> weights_of_numbers;
    GetParam().weight_of_number(bits.data(), scale, weights_of_numbers.data());
    for (uint32_t i = 0; i < kBatch; ++i) {
      const uint32_t expected = law::Distance(law::KeyBits(keys[i]), scale.scale);
      if (expected == law::kDead) {
        ASSERT_GE(t[i], law::kDeadFromDistance) << keys[i];
        ASSERT_LT(keys[i], scale.first_live_key);
      } else {
        ASSERT_EQ(t[i], expected) << keys[i];
        ASSERT_GE(keys[i], scale.first_live_key);
      }
      ASSERT_EQ(weights[i], law::Weight(expected)) << keys[i];
      ASSERT_EQ(weights_of_numbers[i], law::Weight(expected)) << keys[i];
    }
  }
}

TEST_P(LanesTest, Noise) {
  for (uint64_t n = 0; n < Scaled(20'000); ++n) {
    const law::DrawKey key = {uint32_t(random_()), uint32_t(random_()), uint32_t(random_()), uint32_t(random_())};
    std::array<uint32_t, kBatch / 2> pairs;
    for (uint32_t& pair : pairs) pair = uint32_t(random_());
    std::array<uint32_t, 2 * kBatch> words;
    GetParam().noise(pairs.data(), law::kTokenTag, key, words.data());
    for (uint32_t i = 0; i < kBatch / 2; ++i) {
      const law::PhiloxWords expected = law::NoiseWords(pairs[i], law::kTokenTag, key);
      ASSERT_EQ(words[i], expected.x);
      ASSERT_EQ(words[kBatch / 2 + i], expected.y);
      ASSERT_EQ(words[kBatch + i], expected.z);
      ASSERT_EQ(words[3 * kBatch / 2 + i], expected.w);
    }
  }
}

TEST_P(LanesTest, Changed) {
  uint64_t large_ones = 0;
  uint64_t masked_ones = 0;
  for (uint64_t n = 0; n < Scaled(100'000); ++n) {
    static constexpr float kRepetitions[] = {0.01f, 0.8f, 1.1f, 1.3f, 100};
    const float r = kRepetitions[random_() % 5];
    const auto repetition = std::bit_cast<uint32_t>(r);
    const auto inverse = std::bit_cast<uint32_t>(1.0f / r);
    Batch bits, bias, repeated, penalty, changed, large;
    for (uint32_t i = 0; i < kBatch; ++i) {
      bits[i] = i % 16 == 0 ? law::kMaskedBits : LiveBits();
      bias[i] = random_() % 2 == 0 ? 0 : LiveBits();
      repeated[i] = uint32_t(random_() % 2);
      penalty[i] =
          random_() % 2 == 0 ? 0 : law::PenaltyBits(float(random_() % 401) / 2 - 100, 1, 1 + uint32_t(random_() % 3));
      // Sums that vanish, or almost.
      if (i % 16 == 1) bias[i] = bits[i] ^ 0x80000000u;
      if (i % 16 == 2 && bits[i] != 0) bias[i] = (bits[i] ^ 0x80000000u) + 1;
      bias[i] = law::Canonical(bias[i]) == law::kMaskedBits ? 0 : law::Canonical(bias[i]);
    }
    GetParam().changed(bits.data(), bias.data(), repetition, inverse, repeated.data(), penalty.data(), changed.data(),
                       large.data());
    for (uint32_t i = 0; i < kBatch; ++i) {
      const uint32_t expected =
          law::Changed(bits[i], bias[i], repeated[i] != 0 ? repetition : 0, repeated[i] != 0 ? inverse : 0, penalty[i]);
      ASSERT_EQ(large[i] != 0, law::IsTooLarge(expected)) << bits[i] << " " << bias[i];
      large_ones += large[i];
      masked_ones += expected == law::kMaskedBits;
      if (large[i] != 0) continue;
      ASSERT_EQ(changed[i], expected) << bits[i] << " " << bias[i] << " " << penalty[i];
    }
  }
  EXPECT_GT(large_ones, 10u);
  EXPECT_GT(masked_ones, 10u);
}

TEST_P(LanesTest, TrueLanesAreListedInOrder) {
  for (uint64_t n = 0; n < Scaled(20'000); ++n) {
    const uint64_t mask = n == 0 ? 0 : n == 1 ? ~uint64_t{0} : random_() & (n % 2 == 0 ? random_() : ~uint64_t{0});
    Batch values;
    std::array<uint64_t, kBatch> wide;
    std::vector<uint32_t> expected;
    std::vector<uint64_t> expected_wide;
    for (uint32_t i = 0; i < kBatch; ++i) {
      values[i] = uint32_t(random_());
      wide[i] = (random_() & ~uint64_t{1}) | (mask >> i & 1);
      if ((mask >> i & 1) == 0) continue;
      expected.push_back(values[i]);
      expected_wide.push_back(wide[i]);
    }
    // Behind the list's end a vector more may be overwritten.
    std::vector<uint32_t> listed(2 * kBatch);
    std::vector<uint64_t> listed_wide(2 * kBatch);
    listed.resize(GetParam().where(mask, values.data(), listed.data()));
    listed_wide.resize(GetParam().where_odd(wide.data(), listed_wide.data()));
    ASSERT_EQ(listed, expected);
    ASSERT_EQ(listed_wide, expected_wide);
  }
}

}  // namespace
}  // namespace sortition::kernels::cpu::lanes_test
