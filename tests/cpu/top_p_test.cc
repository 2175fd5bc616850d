// Race first: whether top-p keeps the race's winner, decided from bounds on the row's sum.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "kernels/cpu/filter.h"
#include "kernels/cpu/sample_row.h"
#include "kernels/cpu/sums.h"
#include "kernels/law/parameters.h"
#include "kernels/law/reference.h"
#include "kernels/law/row_law.h"
#include "tests/cpu/on_targets.h"
#include "tests/support/laid_row.h"
#include "tests/support/scale.h"

namespace sortition::kernels::cpu::top_p_test {
namespace {

using sortition::testing::kOctave;

constexpr size_t kSteps = size_t(TopPStep::kRow) + 1;

class TopPTest : public ::testing::Test, protected sortition::testing::LaidRow {
 protected:
  TopPTest() { law::Compile({.temperature = kOctave}, &parameters_); }

  // Calls check(kernels, row, scale, scratch) on each target.
  template <typename Check>
  void OnAllTargets(Check check) {
    testing::OnAllTargets(Request(), [&](const Kernels& kernels, const RowView& row, Scratch* scratch) {
      check(kernels, row, MakeRowScale(parameters_, row.max_key), scratch);
    });
  }

  // All tokens that min-p keeps, in order, after masks and edits.
  std::vector<Candidate> Order() {
    std::vector<Candidate> tokens;
    for (const TokenBits& token : LaidRow::Order()) tokens.push_back(Candidate::Of(law::Key(token.bits), token.token));
    if (parameters_.min_p_distance == RowParameters::kMinPOff) return tokens;
    const RowScale scale = MakeRowScale(parameters_, tokens[0].key());
    std::erase_if(tokens, [&](Candidate c) { return DistanceOfKey(c.key(), scale) > parameters_.min_p_distance; });
    return tokens;
  }

  // Expects that the step `by` tells whether the token at `place` of the order is kept, and that it says what the law
  // says.
  void ExpectRuling(uint32_t top_p, size_t place, TopPStep by) {
    SCOPED_TRACE(::testing::Message() << "top_p " << top_p << " place " << place);
    const std::vector<Candidate> order = Order();
    OnAllTargets([&](const Kernels& kernels, const RowView& row, const RowScale& scale, Scratch* scratch) {
      EXPECT_EQ(int(Rule(kernels, row, scale, top_p, order, place, scratch)), int(by));
    });
  }

  // Compares the ruling on the token at `place` with the law's kept prefix, and returns the step that made it.
  TopPStep Rule(const Kernels& kernels, const RowView& row, const RowScale& scale, uint32_t top_p,
                const std::vector<Candidate>& order, size_t place, Scratch* scratch) {
    uint64_t sum = 0;
    for (const Candidate& token : order) sum += WeightOf(token, scale);
    const law::Threshold threshold = law::TopPThreshold(sum, top_p);
    size_t kept = 0;
    for (uint64_t prefix = 0; !law::Reaches(prefix, threshold); ++kept) prefix += WeightOf(order[kept], scale);
    const uint32_t floor = FloorOfMinP(parameters_, row, scale);
    const TopPRuling ruling = RuleByTopP(kernels, top_p, floor, order[place], row, scale, scratch);
    EXPECT_EQ(ruling.is_kept, place < kept);
    if (!ruling.is_kept) {
      EXPECT_TRUE(ruling.kept.Has(order[kept - 1]));
      EXPECT_FALSE(ruling.kept.Has(order[place]));
      EXPECT_TRUE(kept == order.size() || !ruling.is_exact || !ruling.kept.Has(order[kept]));
      if (ruling.is_exact && !ruling.kept.listed.empty()) {
        std::vector<Candidate> listed(ruling.kept.listed.begin(), ruling.kept.listed.end());
        std::ranges::sort(listed, std::greater<>());
        EXPECT_EQ(listed, std::vector<Candidate>(order.begin(), order.begin() + kept));
      }
    }
    ++decided_[ruling.is_kept][size_t(ruling.by)];
    return ruling.by;
  }

  static uint64_t WeightOf(Candidate token, const RowScale& scale) {
    return law::Weight(DistanceOfKey(token.key(), scale));
  }

  std::array<std::array<uint64_t, kSteps>, 2> decided_ = {};  // how often, by [is kept][step]
};

uint32_t Share(double p) { return uint32_t(p * 0x1p32); }

// One token a group: the lower bound is the sum. 64 equal tokens a group: the upper bound is. So a bound that is a unit
// tighter fails.
TEST_F(TopPTest, BoundsOfGroupsHoldAndAreMet) {
  const uint32_t level = law::Key(law::CanonicalBits(-0.5f));
  const auto bounds = [&] {
    SumBounds last;
    OnAllTargets([&](const Kernels& kernels, const RowView& row, const RowScale& scale, Scratch* scratch) {
      uint64_t below = 0;
      uint64_t others = 0;
      for (const Candidate& token : Order()) {
        const bool is_below = row.maxima[token.token() / law::kGroupSize] < level;
        (is_below ? below : others) += WeightOf(token, scale);
      }
      const uint32_t floor = FloorOfMinP(parameters_, row, scale);
      const SumBounds found = BoundGroupsBelow(kernels, row, level, scale, scratch, floor);
      EXPECT_LE(found.low, below);
      EXPECT_GE(found.high, below);
      EXPECT_EQ(SumOfGroupsFrom(kernels, row, level, scale, scratch, floor), others);
      for (const uint64_t widest : {uint64_t{0}, law::kUnitWeight >> 10, law::kUnitWeight, 64 * law::kUnitWeight}) {
        const LeadingSum part = SumLeadingGroups(kernels, row, floor, widest, 0.9, scale, scratch);
        if (part.level == ~0u) continue;
        EXPECT_EQ(part.sum, SumOfGroupsFrom(kernels, row, part.level, scale, scratch, floor));
        EXPECT_EQ(part.sum + SumOfGroupsFrom(kernels, row, floor, scale, scratch, floor, part.level), below + others);
        EXPECT_LE(part.rest.low, below + others - part.sum);
        EXPECT_GE(part.rest.high, below + others - part.sum);
        EXPECT_LE(part.rest.high, std::max(widest, uint64_t{row.groups} * law::kGroupSize));
      }
      last = {below - found.low, found.high - below};
    });
    return last;
  };
  std::vector<std::pair<uint32_t, float>> one_a_group;
  for (uint32_t group = 0; group < 100; ++group) one_a_group.push_back({65 * (group / 2), -0.01f * float(group)});
  Lay(100, one_a_group);
  EXPECT_EQ(bounds().low, 0u);
  for (uint32_t id = 0; id < logits_.size(); ++id) logits_[id] = -0.01f * float(id / law::kGroupSize);
  EXPECT_EQ(bounds().high, 0u);

  // Edits that move down the largest tokens of many groups: what is left of a group may be less than its maximum says.
  for (uint32_t id = 0; id < logits_.size(); ++id) logits_[id] = id % law::kGroupSize == 7 ? -0.6f : -20;
  logits_.back() = 0;
  for (uint32_t group = 0; group < 80; ++group) {
    edits_.push_back({.token = group * law::kGroupSize + 7, .penalty = law::CanonicalBits(-float(group % 8))});
  }
  bounds();

  std::mt19937_64 random(5);
  for (uint64_t n = 0; n < sortition::testing::Scaled(200); ++n) {
    for (float& logit : logits_) logit = -float(random() % 3000) / 1000;
    edits_.clear();
    for (uint32_t id = uint32_t(random() % 64); n % 2 == 0 && id < logits_.size(); id += 1 + uint32_t(random() % 200)) {
      edits_.push_back({.token = id,
                        .flags = random() % 4 == 0 ? uint32_t{LogitEdit::kBanned} : 0,
                        .penalty = law::CanonicalBits(-float(random() % 4))});
    }
    allowed_.clear();
    if (n % 3 == 0) Mask([&](uint32_t id) { return id != 7 && random() % (1 + id % 30) == 0; });
    law::Compile({.temperature = kOctave, .min_p = n % 5 == 0 ? 0.5f : 0}, &parameters_);
    bounds();
  }
}

// Groups with a masked token have a largest key that may be the masked one's. Others bound the sum.
TEST_F(TopPTest, MasksLeaveBoundsOfWholeGroups) {
  std::vector<std::pair<uint32_t, float>> one_a_group;
  for (uint32_t group = 0; group < 200; ++group) one_a_group.push_back({66 * group, -0.001f * float(group)});
  Lay(210, one_a_group);
  Mask([](uint32_t id) { return id % 66 == 1 && id / 66 % 2 == 0; });
  ExpectRuling(Share(0.9), 100, TopPStep::kMaxima);
  Mask([](uint32_t id) { return id % 66 == 1; });
  ExpectRuling(Share(0.9), 100, TopPStep::kNearSum);
  // 0.001 above each token of the first 100 groups stands a masked one.
  for (uint32_t group = 0; group < 100; ++group) logits_[66 * group + 1] = -0.001f * float(group) + 0.001f;
  ExpectRuling(Share(0.9), 100, TopPStep::kNearSum);
}

TEST_F(TopPTest, BoundsBeyondANumberAreNone) {
  logits_.assign((1 << 20) - 1, 0);
  OnAllTargets([](const Kernels& kernels, const RowView& row, const RowScale& scale, Scratch* scratch) {
    const SumBounds found = BoundGroupsBelow(kernels, row, row.max_key + 1, scale, scratch);
    EXPECT_EQ(found.low, uint64_t{row.groups} * law::kUnitWeight);
    EXPECT_EQ(found.high, ~uint64_t{0});
  });
}

TEST_F(TopPTest, LeadingTokensDecideAlone) {
  Lay(300, {{0, 0}, {70, 0}, {140, 0}, {210, 0}});
  for (size_t place = 0; place < 4; ++place) ExpectRuling(Share(0.95), place, TopPStep::kOwnSum);
}

TEST_F(TopPTest, MaximaDecideWhereManyGroupsCount) {
  std::vector<std::pair<uint32_t, float>> one_a_group;
  for (uint32_t group = 0; group < 200; ++group) one_a_group.push_back({66 * group, -0.001f * float(group)});
  Lay(210, one_a_group);
  ExpectRuling(Share(0.9), 100, TopPStep::kMaxima);
  ExpectRuling(Share(0.9), 170, TopPStep::kMaxima);
}

// 64 tokens of weight 1 each: exactly `before` of them come before a place.
TEST_F(TopPTest, LeadingGroupsDecideToTheUnit) {
  std::vector<std::pair<uint32_t, float>> in_one_group;
  for (uint32_t i = 0; i < 64; ++i) in_one_group.push_back({64 + i, 0.0f});
  Lay(200, in_one_group);
  for (const size_t place : {31, 32, 33, 63}) ExpectRuling(Share(0.5), place, TopPStep::kLeadingGroups);
}

TEST_F(TopPTest, NearSumsDecideWhereGroupsAreFull) {
  std::vector<std::pair<uint32_t, float>> logits;
  for (uint32_t id = 0; id < 200 * 64; ++id) {
    logits.push_back({id, id < 64 ? 0.0f : -1 - 0.001f * float(id / law::kGroupSize)});
  }
  Lay(200, logits);
  // Some 6,000 units. The place has 10 before it, the thresholds are at about 20 and 5.
  ExpectRuling(Share(20.0 / 6000), 10, TopPStep::kNearSum);
  ExpectRuling(Share(5.0 / 6000), 10, TopPStep::kNearSum);
}

// Min-p keeps 3,200 tokens, 8 a group. Those that it drops weigh as much.
TEST_F(TopPTest, NearSumsLeaveOutWhatMinPDrops) {
  std::vector<std::pair<uint32_t, float>> logits;
  for (uint32_t id = 0; id < 400 * 64; ++id) {
    const bool is_kept = id % 8 == 0;
    logits.push_back({id, is_kept ? -0.0001f * float(id / 64) : -2});
  }
  Lay(400, logits);
  law::Compile({.temperature = kOctave, .min_p = 0.5f}, &parameters_);
  ASSERT_EQ(Order().size(), 3200u);
  for (const size_t place : {2200, 2870, 2890, 3190}) ExpectRuling(Share(0.9), place, TopPStep::kNearSum);
  // With few tokens before it, the last step.
  for (uint32_t id = 0; id < 64 * 20; id += 64) logits_[id] = 0.5f;
  ExpectRuling(Share(0.003), 10, TopPStep::kNearSum);
  ExpectRuling(Share(0.003), 19, TopPStep::kNearSum);
}

TEST_F(TopPTest, TokensFarBackAreRuledByTheRow) {
  logits_.assign(400 * 64, 0);
  for (const size_t place : {12'799, 12'800}) ExpectRuling(Share(0.5), place, TopPStep::kRow);
}

// Fixed point is coarse, or a masked token's number lies near the first one's.
TEST_F(TopPTest, RowsWithoutNearSumsAreRuledByTheRow) {
  for (const auto& [temperature, max] : {std::pair(100.0f, -65000.0f), std::pair(1.0f, 30000.0f)}) {
    law::Compile({.temperature = temperature}, &parameters_);
    logits_.assign(400 * 64, -65504.0f);
    for (uint32_t id = 0; id < logits_.size(); id += 1 + id % 2) logits_[id] = max - 0.25f * float(id % 3);
    for (const size_t place : {5000, 12'000}) ExpectRuling(Share(0.5), place, TopPStep::kRow);
  }
}

// Rows and noise of many kinds: the drawn token is the reference's, and each step decides some of them each way.
TEST_F(TopPTest, DrawsEqualTheReference) {
  std::mt19937_64 random(7);
  constexpr uint64_t kRows = 1000;
  const uint64_t rows = sortition::testing::Scaled(kRows);
  for (uint64_t n = 0; n < rows; ++n) {
    SCOPED_TRACE(n);
    logits_.resize(1 + random() % 25'000);
    static constexpr float kSpreads[] = {0.001f, 0.3f, 1, 3, 10};
    LayAtRandom({.deviation = kSpreads[n % 5], .head = n % 3 != 0 ? 300u : 0u, .has_ties = n % 7 == 0}, &random);
    for (uint32_t id = 0; n % 10 == 9 && id < logits_.size(); ++id) {
      // RuleFarBack samples every n-th group.
      const size_t seen = std::max<size_t>(1, logits_.size() / 2048);
      logits_[id] = float(random() % 1000) / 2000 - (id / law::kGroupSize % seen == 0 ? 1 : n % 4);
    }
    Narrow(std::array{DType::kF32, DType::kF16, DType::kBF16}[n / 2 % 3]);
    edits_.clear();
    if (n % 4 == 0) EditAtRandom(&random);
    allowed_.clear();
    if (n % 6 == 5) {
      const uint64_t hidden = random() % 10;
      Mask([&](uint32_t id) { return id != 0 && random() % 10 < hidden; });
    }
    static constexpr float kTopP[] = {0.95f, 0.9f, 0.5f, 0.1f, 0.99f, 0.001f};
    static constexpr float kMinP[] = {0, 0, 0, 0.001f, 0.1f};
    law::Compile({.temperature = n % 2 == 0 ? 0.8f : 1.3f, .top_p = kTopP[random() % 6], .min_p = kMinP[random() % 5]},
                 &parameters_);
    seed_ = random();
    const RowOutput expected = law::SampleRowReference(Request());
    RowParameters without = parameters_;
    without.top_p = 0;
    RowRequest race = Request();
    race.parameters = &without;
    const RowOutput winner = law::SampleRowReference(race);
    const std::vector<Candidate> order = Order();
    const auto place = size_t(std::ranges::find(order, winner.token, &Candidate::token) - order.begin());
    for (const Target* target : RunnableTargets()) {
      Scratch scratch;
      RowOutput answer;
      RowRequest request = Request();
      if (n % 3 == 0) request.likely = order[n % order.size()].token();
      SampleRow(*target, request, &scratch, &answer);
      ASSERT_EQ(answer.token, expected.token) << target->name;
    }
    OnAllTargets([&](const Kernels& kernels, const RowView& row, const RowScale& scale, Scratch* scratch) {
      Rule(kernels, row, scale, parameters_.top_p, order, place, scratch);
    });
    if (HasFailure()) return;
  }
  if (rows < kRows) return;
  // The other steps are forced above.
  for (const TopPStep step : {TopPStep::kOwnSum, TopPStep::kMaxima, TopPStep::kLeadingGroups, TopPStep::kNearSum}) {
    EXPECT_GT(decided_[true][size_t(step)], 0u) << int(step);
  }
  for (const TopPStep step : {TopPStep::kLeadingGroups, TopPStep::kNearSum}) {
    EXPECT_GT(decided_[false][size_t(step)], 0u) << int(step);
  }
}

// Puts the race's winners behind all that is kept, the first of them last, and misleads the sample, as a caller can who
// knows the noise. Each winner would cost a race and a sum.
TEST_F(TopPTest, RowDecidesAfterWinnersMadeToBeDropped) {
  constexpr int kWinners = 8;
  logits_.assign(25'600, 0);
  for (uint32_t id = 0; id < logits_.size(); ++id) {
    if (id / law::kGroupSize % (logits_.size() / 2048) == 0) logits_[id] = -3;
  }
  law::Compile({.temperature = 1}, &parameters_);
  std::vector<uint32_t> winners;
  for (int i = 0; i < kWinners; ++i) {
    winners.push_back(law::SampleRowReference(Request()).token);
    edits_.push_back({.token = winners.back(), .flags = LogitEdit::kBanned});
    std::ranges::sort(edits_, {}, &LogitEdit::token);
  }
  edits_.clear();
  for (int i = 0; i < kWinners; ++i) logits_[winners[i]] = -0.001f * float(kWinners - i);
  law::Compile({.temperature = 1, .top_p = 0.5f}, &parameters_);
  const RowOutput expected = law::SampleRowReference(Request());
  EXPECT_TRUE(std::ranges::find(winners, expected.token) == winners.end());
  static decltype(Kernels::NearWeights) near_weights;
  static int sums;
  for (const Target* target : RunnableTargets()) {
    Target counted = *target;
    near_weights = counted.kernels.NearWeights;
    sums = 0;
    counted.kernels.NearWeights = [](const RowView& row, const uint32_t* groups, uint32_t count, Candidate end,
                                     const RowScale& scale) {
      ++sums;
      return near_weights(row, groups, count, end, scale);
    };
    Scratch scratch;
    RowOutput answer;
    SampleRow(counted, Request(), &scratch, &answer);
    EXPECT_EQ(answer, expected) << target->name;
    EXPECT_GT(sums, 1) << target->name;
    EXPECT_LT(sums, kWinners) << target->name;
  }
}

}  // namespace
}  // namespace sortition::kernels::cpu::top_p_test
