// Rejection in rounds leaves no trace of the drafter: over every list of up to 4 drafts from up to 4 tokens, with the
// probabilities of the law's decisions.
//
// Weights are integers, and the number of uniform words by which a decision is true is found exactly. Sums and products
// of these are taken in long double.
#include "kernels/law/rounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

namespace sortition::law::rounds_test {
namespace {

using Real = long double;

// Returns the probability of a decision over a uniform word; words up to some bound make it true.
Real ChanceOf(const std::function<bool(uint64_t)>& decides) {
  if (!decides(0)) return 0;
  uint64_t least = 0;  // true
  for (int bit = 63; bit >= 0; --bit) {
    if (decides(least + (uint64_t{1} << bit))) least += uint64_t{1} << bit;
  }
  return (Real(least) + 1) * 0x1p-64L;
}

// A planted defect: the drafter is taken for one that draws the other way, or the weights of refused rounds come back.
enum class Defect { kNone, kOtherSampling, kForgetsRounds };

class Position {
 public:
  Position(uint32_t tokens, uint64_t seed, bool with_replacement, Defect defect)
      : with_replacement_(with_replacement), defect_(defect), emitted_(tokens) {
    std::mt19937_64 random(seed);
    const uint64_t kind = random() % 6;
    uint32_t left = 1 << 20;
    for (uint32_t x = 0; x < tokens; ++x) {
      weights_.push_back(kind == 0 && x == 1 ? 0 : (uint64_t{1} << 44) >> (random() % 3) | random() % 1000003);
      uint32_t units = x + 1 == tokens ? left : uint32_t(random() % (left + 1));
      if (kind == 1 && x == 0) units = 0;
      if (kind == 2 && x == 0) units = left - 3;  // next to nothing is left without this token
      left -= units;
      q_.push_back(float(units) * 0x1p-20f);
    }
    if (kind != 3) return;
    for (uint32_t x = 0; x < tokens; ++x) weights_[x] = uint64_t(double(q_[x]) * 0x1p44);
    weights_[tokens - 1] += 1;
  }

  // Returns by how much the token's distribution is off the target's, in total variation.
  Real Distance(uint32_t drafts) {
    Try(1, {}, weights_, Sum(weights_), drafts);
    Real off = 0;
    for (size_t x = 0; x < weights_.size(); ++x) {
      off += std::abs(Real(weights_[x]) / Real(Sum(weights_)) - emitted_[x]);
    }
    return off / 2;
  }
  Real accepted() const { return accepted_; }
  // SPECULATION.md: the roundings of the drafter's weights in each round.
  Real BiasBound(uint32_t drafts) const {
    const auto tokens = Real(weights_.size());
    return Real(drafts) * (tokens * 0x1p-42L + 3 * tokens / Real(Sum(weights_)));
  }

 private:
  static uint64_t Sum(const std::vector<uint64_t>& weights) {
    uint64_t sum = 0;
    for (const uint64_t w : weights) sum += w;
    return sum;
  }
  static bool Has(const std::vector<uint32_t>& tokens, uint32_t token) {
    return std::ranges::find(tokens, token) != tokens.end();
  }

  // Spreads `chance` over a row's tokens after its drafts `tried` were refused.
  void Try(Real chance, const std::vector<uint32_t>& tried, const std::vector<uint64_t>& weights, uint64_t sum,
           uint32_t drafts) {
    if (chance == 0) return;
    const auto tokens = uint32_t(weights.size());
    Real left = 0;  // to the drafter
    for (uint32_t x = 0; x < tokens; ++x) left += with_replacement_ || !Has(tried, x) ? Real(q_[x]) : 0;
    // A drafter without replacement that has drawn all it can draw proposes nothing more.
    if (drafts == 0 || left == 0) {
      for (uint32_t x = 0; x < tokens; ++x) emitted_[x] += chance * Real(weights[x]) / Real(sum);
      return;
    }
    const std::vector<uint64_t> drafters = DrafterAfter(tried, sum);
    std::vector<uint64_t> residuals;
    for (uint32_t x = 0; x < tokens; ++x) residuals.push_back(Residual(weights[x], drafters[x]));
    const bool leaves = Sum(residuals) != 0 && defect_ != Defect::kForgetsRounds;
    for (uint32_t x = 0; x < tokens; ++x) {
      if (q_[x] == 0 || (!with_replacement_ && Has(tried, x))) continue;
      const Real drawn = chance * Real(q_[x]) / left;
      const Real passes = ChanceOf([&](uint64_t word) { return Accepts(word, weights[x], drafters[x]); });
      emitted_[x] += drawn * passes;
      accepted_ += drawn * passes;
      std::vector<uint32_t> longer = tried;
      longer.push_back(x);
      Try(drawn * (1 - passes), longer, leaves ? residuals : weights, leaves ? Sum(residuals) : sum, drafts - 1);
    }
  }

  std::vector<uint64_t> DrafterAfter(const std::vector<uint32_t>& tried, uint64_t sum) const {
    const bool replaces = with_replacement_ != (defect_ == Defect::kOtherSampling);
    const auto bits = [&](uint32_t x) { return replaces || !Has(tried, x) ? std::bit_cast<uint32_t>(q_[x]) : 0; };
    uint32_t largest = 0;
    for (uint32_t x = 0; x < q_.size(); ++x) largest = std::max(largest, ProbabilityExponent(bits(x)));
    uint64_t units = 0;
    for (uint32_t x = 0; x < q_.size(); ++x) units += LeftUnits(bits(x), largest);
    RoundDrafter drafter = RoundDrafter::Whole(sum);
    if (!replaces && !tried.empty()) {
      drafter = largest == 0 ? RoundDrafter::Nothing() : RoundDrafter::Left(sum, largest, units);
    }
    std::vector<uint64_t> weights;
    for (uint32_t x = 0; x < q_.size(); ++x) weights.push_back(drafter.Weight(bits(x)));
    return weights;
  }

  const bool with_replacement_;
  const Defect defect_;
  std::vector<uint64_t> weights_;
  std::vector<float> q_;  // multiples of 2^-20 that sum to 1
  std::vector<Real> emitted_;
  Real accepted_ = 0;
};

TEST(Rounds, TokenIsDistributedAsTheTargets) {
  uint32_t more = 0;
  for (const bool with_replacement : {false, true}) {
    for (uint32_t tokens = 2; tokens <= 4; ++tokens) {
      for (uint64_t seed = 0; seed < 60; ++seed) {
        Real accepted = 0;
        for (uint32_t drafts = 1; drafts <= 4; ++drafts) {
          SCOPED_TRACE(::testing::Message() << tokens << " tokens, " << drafts << " drafts, seed " << seed
                                            << (with_replacement ? ", with replacement" : ""));
          Position position(tokens, seed, with_replacement, Defect::kNone);
          EXPECT_LE(position.Distance(drafts), position.BiasBound(drafts));
          EXPECT_GE(position.accepted(), accepted - 1e-15L);  // more drafts, more accepted
          more += drafts > 1 && position.accepted() > accepted + 1e-3L;
          accepted = position.accepted();
        }
      }
    }
  }
  EXPECT_GT(more, 200u);
}

TEST(Rounds, PlantedDefectsAreFound) {
  for (const Defect defect : {Defect::kOtherSampling, Defect::kForgetsRounds}) {
    for (const bool with_replacement : {false, true}) {
      uint32_t found = 0;
      for (uint64_t seed = 0; seed < 30; ++seed) {
        found += Position(3, seed, with_replacement, defect).Distance(2) > 1e-3L;
      }
      EXPECT_GE(found, 10u) << int(defect) << with_replacement;
    }
  }
}

TEST(Rounds, DraftersWeightsAreCutToTheSum) {
  const uint32_t half = std::bit_cast<uint32_t>(0.5f);
  const uint32_t tiny = std::bit_cast<uint32_t>(0x1p-100f);
  const uint64_t sum = (uint64_t{1} << 44) + 12345;
  EXPECT_EQ(RoundDrafter::Whole(sum).Weight(half), sum / 2);
  EXPECT_EQ(RoundDrafter::Nothing().Weight(half), 0u);
  // However little is left, it is all of the distribution.
  const uint32_t exponent = ProbabilityExponent(tiny);
  EXPECT_EQ(LeftUnits(tiny, exponent), uint64_t{1} << 43);
  const RoundDrafter one = RoundDrafter::Left(sum, exponent, uint64_t{1} << 43);
  EXPECT_LE(one.Weight(tiny), sum);
  EXPECT_GE(one.Weight(tiny), sum - 2);
  const RoundDrafter three = RoundDrafter::Left(sum, exponent, uint64_t{3} << 43);
  EXPECT_GE(three.Weight(tiny), sum / 3 - 2);
  EXPECT_LE(three.Weight(tiny), sum / 3);
  EXPECT_EQ(LeftUnits(1, exponent), 0u);  // below 2^-126
  EXPECT_EQ(LeftUnits(std::bit_cast<uint32_t>(0x1p-120f), exponent), 1u << 23);
  EXPECT_EQ(LeftUnits(0x00800000, ProbabilityExponent(half)), 0u);
}

}  // namespace
}  // namespace sortition::law::rounds_test
