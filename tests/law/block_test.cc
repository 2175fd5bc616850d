// Block verification leaves no trace of the drafter, and accepts no fewer drafts than rejection: over every text of up
// to 4 tokens from up to 4 ones, with the probabilities of the law's decisions.
//
// Weights are integers, and the number of uniform words by which a decision is true is found exactly. Sums and products
// of these are taken in long double: 2^-60 off, where the law's roundings are 2^-32.
#include "kernels/law/block.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <vector>

namespace sortition::law::block_test {
namespace {

using Text = std::vector<uint32_t>;
using Real = long double;
constexpr uint64_t kCertain = kernels::RowRequest::kCertainSurvival;

// Returns the probability of a decision over a uniform word; words up to some bound make it true.
Real ChanceOf(const std::function<bool(uint64_t)>& decides) {
  if (!decides(0)) return 0;
  uint64_t least = 0;  // true
  for (int bit = 63; bit >= 0; --bit) {
    if (decides(least + (uint64_t{1} << bit))) least += uint64_t{1} << bit;
  }
  return (Real(least) + 1) * 0x1p-64L;
}

// Weights of the target and probabilities of the drafter after a prefix, which they are a function of.
struct Position {
  std::vector<uint64_t> weights;
  std::vector<float> q;  // multiples of 2^-20 that sum to 1

  uint64_t sum() const {
    uint64_t sum = 0;
    for (const uint64_t w : weights) sum += w;
    return sum;
  }
  Real p(uint32_t token) const { return Real(weights[token]) / Real(sum()); }
  uint64_t DraftWeightOf(uint32_t token) const { return DraftWeight(std::bit_cast<uint32_t>(q[token]), sum()); }
};

// A planted defect.
enum class Defect { kNone, kResidualOfRejection, kEndsTooOften, kSurvivalNotCarried };

class Model {
 public:
  Model(uint32_t tokens, uint32_t drafts, uint64_t seed, Defect defect = Defect::kNone)
      : tokens_(tokens), drafts_(drafts), seed_(seed), defect_(defect) {}

  // Returns by how much the texts' distribution is off the target's, in total variation.
  Real Distance() {
    Spread({}, 1, kCertain, {});
    Real off = 0;
    Visit({}, 1, [&](const Text& text, Real p) { off += std::abs(p - emitted_[text]); });
    return off / 2;
  }
  Real accepted() const { return accepted_; }

  // Returns the drafts that rejection accepts in expectation.
  Real AcceptedByRejection(const Text& prefix = {}) {
    if (prefix.size() == drafts_) return 0;
    const Position at = PositionAfter(prefix);
    Real accepted = 0;
    for (uint32_t x = 0; x < tokens_; ++x) {
      if (at.q[x] == 0) continue;
      const Real passes =
          Real(at.q[x]) * ChanceOf([&](uint64_t word) { return Accepts(word, at.weights[x], at.DraftWeightOf(x)); });
      Text next = prefix;
      next.push_back(x);
      accepted += passes * (1 + AcceptedByRejection(next));
    }
    return accepted;
  }

 private:
  // Every fourth position is one where the drafter is right, or gives a token nothing, or the target does.
  Position PositionAfter(const Text& prefix) const {
    uint64_t seed = seed_;
    for (const uint32_t token : prefix) seed = seed * 0x9e3779b97f4a7c15 + token + 1;
    std::mt19937_64 random(seed);
    Position at;
    uint32_t left = 1 << 20;
    const uint64_t kind = random() % 8;
    for (uint32_t x = 0; x < tokens_; ++x) {
      at.weights.push_back(kind == 0 && x == 1 ? 0 : (uint64_t{1} << 44) >> (random() % 3) | random() % 1000003);
      const uint32_t units = x + 1 == tokens_ ? left : kind == 1 && x == 0 ? 0 : uint32_t(random() % (left + 1));
      left -= units;
      at.q.push_back(float(units) * 0x1p-20f);
    }
    if (kind != 2) return at;
    for (uint32_t x = 0; x < tokens_; ++x) at.weights[x] = uint64_t(double(at.q[x]) * 0x1p44);
    at.weights[tokens_ - 1] += 1;
    return at;
  }

  // The state of a position of one drafted block.
  struct Ending {
    Real chance;             // that the block may end here
    std::vector<Real> left;  // the distribution of the token that it ends with
  };

  // Drafts a block token by token; `endings` belong to the positions before.
  void Spread(const Text& drafted, Real chance, uint64_t survival, std::vector<Ending> endings) {
    if (chance == 0) return;
    const Position at = PositionAfter(drafted);
    if (drafted.size() == drafts_) {
      Ending last;
      last.chance = ChanceOf([&](uint64_t word) { return MayEndAfter(word, survival); });
      for (uint32_t x = 0; x < tokens_; ++x) last.left.push_back(at.p(x));
      endings.push_back(std::move(last));
      return Emit(drafted, chance, endings);
    }
    endings.push_back(EndingAt(at, survival));
    for (uint32_t x = 0; x < tokens_; ++x) {
      if (at.q[x] == 0) continue;
      uint64_t next = NextSurvival(survival, at.weights[x], at.DraftWeightOf(x));
      if (defect_ == Defect::kSurvivalNotCarried) next = NextSurvival(kCertain, at.weights[x], at.DraftWeightOf(x));
      Text longer = drafted;
      longer.push_back(x);
      Spread(longer, chance * Real(at.q[x]), next, endings);
    }
  }

  Ending EndingAt(const Position& at, uint64_t survival) const {
    const uint64_t scale = defect_ == Defect::kResidualOfRejection ? kCertain : survival;
    uint64_t shared = 0;
    Real sum = 0;
    Ending ending;
    for (uint32_t x = 0; x < tokens_; ++x) {
      shared += Shared(at.weights[x], at.DraftWeightOf(x), survival);
      ending.left.push_back(Real(BlockResidual(at.weights[x], at.DraftWeightOf(x), scale)));
      sum += ending.left.back();
    }
    for (uint32_t x = 0; x < tokens_; ++x) ending.left[x] = sum == 0 ? at.p(x) : ending.left[x] / sum;
    ending.chance = ChanceOf([&](uint64_t word) {
      if (defect_ == Defect::kEndsTooOften) return MayEnd(word / 2, at.sum(), shared, survival);
      return MayEnd(word, at.sum(), shared, survival);
    });
    return ending;
  }

  // The block ends at the last position where it may, at the first one at least.
  void Emit(const Text& drafted, Real chance, const std::vector<Ending>& endings) {
    for (size_t end = endings.size(); end-- > 0;) {
      const Real here = end == 0 ? chance : chance * endings[end].chance;
      chance -= here;
      accepted_ += here * Real(end);
      for (uint32_t x = 0; x < tokens_; ++x) {
        Text text(drafted.begin(), drafted.begin() + std::ptrdiff_t(end));
        text.push_back(x);
        Visit(text, here * endings[end].left[x], [&](const Text& whole, Real p) { emitted_[whole] += p; });
      }
    }
  }

  // Continues a text by the target to its whole length.
  template <typename Take>
  void Visit(const Text& text, Real chance, Take take) {
    if (text.size() == drafts_ + 1) return take(text, chance);
    const Position at = PositionAfter(text);
    for (uint32_t x = 0; x < tokens_; ++x) {
      Text longer = text;
      longer.push_back(x);
      Visit(longer, chance * at.p(x), take);
    }
  }

  const uint32_t tokens_;
  const uint32_t drafts_;
  const uint64_t seed_;
  const Defect defect_;
  std::map<Text, Real> emitted_;
  Real accepted_ = 0;
};

// SPECULATION.md: one unit of survival, and the tokens' roundings of weights, for each position.
constexpr Real BiasBound(uint32_t tokens, uint32_t drafts) {
  return Real(drafts) * (0x1p-32L + Real(3 * tokens) * 0x1p-42L);
}

TEST(Block, TextIsDistributedAsTheTargets) {
  uint32_t more = 0;
  for (uint32_t tokens = 2; tokens <= 4; ++tokens) {
    for (uint32_t drafts = 1; drafts <= 3; ++drafts) {
      for (uint64_t seed = 0; seed < (tokens == 4 && drafts == 3 ? 12 : 40); ++seed) {
        SCOPED_TRACE(::testing::Message() << tokens << " tokens, " << drafts << " drafts, seed " << seed);
        Model model(tokens, drafts, seed);
        const Real bound = BiasBound(tokens, drafts);
        EXPECT_LE(model.Distance(), bound);
        const Real rejection = model.AcceptedByRejection();
        EXPECT_GE(model.accepted(), rejection - Real(drafts) * bound);
        more += drafts > 1 && model.accepted() > rejection + 1e-3L;
        if (drafts > 1) continue;
        EXPECT_NEAR(double(model.accepted()), double(rejection), 1e-9);
      }
    }
  }
  EXPECT_GT(more, 100u);  // 212 cases have several drafts
}

TEST(Block, PlantedDefectsAreFound) {
  for (const Defect defect : {Defect::kResidualOfRejection, Defect::kEndsTooOften, Defect::kSurvivalNotCarried}) {
    uint32_t found = 0;
    for (uint64_t seed = 0; seed < 20; ++seed) found += Model(3, 2, seed, defect).Distance() > 1e-3L;
    EXPECT_GE(found, 10u) << int(defect);
  }
}

TEST(Block, SurvivalIsCutToItsUnit) {
  EXPECT_EQ(NextSurvival(kCertain, 5, 0), kCertain);
  EXPECT_EQ(NextSurvival(kCertain, 0, 0), 0u);
  EXPECT_EQ(NextSurvival(kCertain, 0, 7), 0u);
  EXPECT_EQ(NextSurvival(0, 7, 7), 0u);
  EXPECT_EQ(NextSurvival(kCertain, 7, 7), kCertain);
  EXPECT_EQ(NextSurvival(kCertain, uint64_t{1} << 44, ~uint64_t{0}), (uint64_t{1} << 12));
  EXPECT_EQ(NextSurvival(1, uint64_t{1} << 44, (uint64_t{1} << 44) + 1), 0u);
  EXPECT_EQ(NextSurvival(kCertain, 2, 3), 0xaaaaaaaau);
  EXPECT_TRUE(MayEndAfter(~uint64_t{0}, kCertain));
  EXPECT_FALSE(MayEndAfter(0, 0));
}

}  // namespace
}  // namespace sortition::law::block_test
