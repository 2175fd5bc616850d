// Top-p alone races first: whether the winner is kept is decided from bounds on the row's sum, or by the second kernel.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "kernels/law/parameters.h"
#include "kernels/law/reference.h"
#include "kernels/law/row_law.h"
#include "tests/cuda/emulated_batch.h"
#include "tests/support/laid_row.h"
#include "tests/support/scale.h"

namespace sortition::kernels::cuda::top_p_test {
namespace {

using sortition::testing::kOctave;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

class CudaTopP : public ::testing::Test, protected sortition::testing::LaidRow {
 protected:
  CudaTopP() { Ask(0.5f); }

  void Ask(float top_p, float min_p = 0) {
    law::Compile({.temperature = kOctave, .top_p = top_p, .min_p = min_p}, &parameters_);
  }

  RowRequest Request(uint64_t seed) {
    seed_ = seed;
    return LaidRow::Request();
  }

  // Runs the row with this seed, expects the reference's answer, and notes the step that ruled.
  void Run(uint64_t seed) {
    const RowRequest request = Request(seed);
    testing::EmulatedBatch batch;
    batch.AddRow(request);
    const RowOutput answer = batch.Run(4, seed)[0];
    EXPECT_EQ(answer, law::SampleRowReference(request)) << "seed " << seed;
    const uint32_t step = batch.state(0).top_p_step;
    EXPECT_EQ(step == kStepRow, (batch.state(0).pending & kPendingSample) != 0);
    ++ruled_[step];
    if (step == kStepRow) ++kept_by_row_[batch.state(0).token == answer.token];
  }

  // Runs the row with many seeds, and returns the steps that ruled.
  std::set<uint32_t> StepsOf(uint64_t seeds) {
    ruled_.clear();
    for (uint64_t seed = 0; seed < seeds && !HasFailure(); ++seed) Run(seed);
    std::set<uint32_t> steps;
    for (const auto& [step, count] : ruled_) steps.insert(step);
    return steps;
  }

  std::map<uint32_t, uint64_t> ruled_;        // how often, by step
  std::array<uint64_t, 2> kept_by_row_ = {};  // how often the row's weights ruled so on a winner
};

TEST_F(CudaTopP, GroupsOfTheWinnerDecideAlone) {
  Lay(300, {{0, 0}, {70, 0}, {140, 0}, {210, 0}});
  Ask(0.95f);
  EXPECT_THAT(StepsOf(12), ElementsAre(kStepGroups));
}

TEST_F(CudaTopP, MaximaKeepTheWinner) {
  std::vector<std::pair<uint32_t, float>> one_a_group;
  for (uint32_t group = 0; group < 200; ++group) one_a_group.push_back({66 * group, -0.001f * float(group)});
  Lay(210, one_a_group);
  Ask(0.9f);
  EXPECT_THAT(StepsOf(12), Contains(kStepMaxima));
}

TEST_F(CudaTopP, MaximaDropTheWinner) {
  Lay(100, {{0, 0}, {70, -1}});
  EXPECT_THAT(StepsOf(12), ElementsAre(kStepGroups, kStepMaxima | kStepDropped));
}

// A token in four may win with one token before it. Full groups weigh much more than their maxima.
TEST_F(CudaTopP, LeadingGroupsKeepTheWinner) {
  std::vector<std::pair<uint32_t, float>> logits = {{0, 0}, {64, 0}};
  for (uint32_t i = 0; i < 8 * law::kGroupSize; ++i) logits.push_back({128 + i, -8});
  Lay(130, logits);
  Ask(0.49f);
  EXPECT_THAT(StepsOf(24), Contains(kStepLeading));
}

// The 128th group's maximum is that of 300 groups. One block does not weigh these.
TEST_F(CudaTopP, RowDecidesWhereManyGroupsTie) {
  std::vector<std::pair<uint32_t, float>> logits = {{0, 0}, {64, 0}};
  for (uint32_t i = 0; i < 300; ++i) logits.push_back({128 + law::kGroupSize * i, -12});
  Lay(310, logits);
  Ask(0.48f);
  EXPECT_THAT(StepsOf(24), AllOf(Contains(kStepRow), Not(Contains(kStepLeading | kStepDropped))));
}

// Groups of one token weigh much less than 64 times their maxima.
TEST_F(CudaTopP, LeadingGroupsDropTheWinner) {
  std::vector<std::pair<uint32_t, float>> logits = {{0, 0}, {64, 0}};
  for (uint32_t i = 0; i < 10; ++i) logits.push_back({128 + law::kGroupSize * i, -2});
  Lay(130, logits);
  Ask(0.2f);
  EXPECT_THAT(StepsOf(24), Contains(kStepLeading | kStepDropped));
}

// The winner is the last of four tokens. Of the others two are kept, but the bounds allow three.
TEST_F(CudaTopP, WinnerOfAListMayStayOpen) {
  Lay(10, {{0, 0}, {64, 0}, {128, 0}, {192, -1}, {256, -7}});
  Ask(0.55f);
  EXPECT_THAT(StepsOf(80), AllOf(Contains(kStepMaxima | kStepDropped), Contains(kStepRow)));
  EXPECT_EQ(kept_by_row_[true], 0u);
}

TEST_F(CudaTopP, RowDecidesOnTokensFarBack) {
  // Tokens in one order of keys and ids, and tokens that all tie.
  for (const float step : {0.0f, 0.0001f}) {
    kept_by_row_ = {};
    logits_.resize(300 * law::kGroupSize - 7);
    for (uint32_t id = 0; id < logits_.size(); ++id) logits_[id] = step * float(id % 1000);
    EXPECT_THAT(StepsOf(12), Contains(kStepRow));
    EXPECT_GT(kept_by_row_[true], 0u);
    EXPECT_GT(kept_by_row_[false], 0u);
  }
}

// All tokens tie, so exactly `winner` tokens come before the winner.
TEST_F(CudaTopP, RowDecidesToTheToken) {
  logits_.assign(300 * law::kGroupSize, 0);
  for (uint64_t seed = 0; seed < 8; ++seed) {
    Ask(1);
    const uint32_t winner = law::SampleRowReference(Request(seed)).token;
    for (const float before : {-0.5f, 0.5f}) {
      Ask((float(winner) + before) / float(logits_.size()));
      kept_by_row_ = {};
      Run(seed);
      EXPECT_EQ(kept_by_row_[before > 0], 1u) << winner;
    }
  }
}

// Puts the race's first winners behind all that is kept, the first of them last, as a caller can who knows the noise.
// After a few the end of what is kept is searched.
TEST_F(CudaTopP, RowDecidesAfterWinnersMadeToBeDropped) {
  constexpr uint32_t kWinners = 8;
  logits_.assign(300 * law::kGroupSize, 0);
  Ask(1);
  std::vector<uint32_t> winners;
  for (uint32_t i = 0; i < kWinners; ++i) {
    winners.push_back(law::SampleRowReference(Request(3)).token);
    edits_.push_back({.token = winners.back(), .flags = LogitEdit::kBanned});
    std::ranges::sort(edits_, {}, &LogitEdit::token);
  }
  edits_.clear();
  Ask(0.5f);
  for (uint32_t dropped = 1; dropped <= kWinners; ++dropped) {
    for (uint32_t i = 0; i < dropped; ++i) logits_[winners[i]] = -0.001f * float(dropped - i);
    Run(3);
  }
  EXPECT_EQ(kept_by_row_[false], kWinners);
}

// Rows and noise of many kinds: each step decides some of them, each way.
TEST_F(CudaTopP, DrawsEqualTheReference) {
  std::mt19937_64 random(7);
  constexpr uint64_t kRows = 400;
  const uint64_t rows = sortition::testing::Scaled(kRows);
  for (uint64_t n = 0; n < rows; ++n) {
    SCOPED_TRACE(n);
    logits_.resize(1 + random() % 25'000);
    static constexpr float kSpreads[] = {0.001f, 0.3f, 1, 3, 10};
    LayAtRandom({.deviation = kSpreads[n % 5], .head = n % 3 != 0 ? 300u : 0u, .has_ties = n % 7 == 0}, &random);
    edits_.clear();
    if (n % 4 == 0) EditAtRandom(&random);
    allowed_.assign(n % 6 == 1 ? (logits_.size() + 31) / 32 : 0, 0);
    for (uint32_t& word : allowed_) word = uint32_t(random());
    if (!allowed_.empty()) allowed_[0] |= 1;
    static constexpr float kTopP[] = {0.95f, 0.9f, 0.5f, 0.1f, 0.99f, 0.001f};
    Ask(kTopP[random() % 6], n % 8 == 3 ? 0.001f : 0);
    parameters_.raw_logprob = n % 5 == 0;
    Run(random());
    if (HasFailure()) return;
  }
  if (rows < kRows) return;
  // The other one is forced above.
  for (const uint32_t step :
       {kStepGroups, kStepMaxima, kStepRow, kStepMaxima | kStepDropped, kStepLeading | kStepDropped}) {
    EXPECT_GT(ruled_[step], 0u) << step;
  }
  EXPECT_GT(kept_by_row_[true], 0u);
  EXPECT_GT(kept_by_row_[false], 0u);
}

}  // namespace
}  // namespace sortition::kernels::cuda::top_p_test
