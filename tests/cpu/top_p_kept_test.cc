// Top-p where the kept tokens themselves are wanted, and drafts and scores: by bounds where they are certain.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/cpu/scale.h"
#include "kernels/law/parameters.h"
#include "kernels/law/row_law.h"
#include "tests/cpu/on_targets.h"
#include "tests/support/laid_row.h"
#include "tests/support/scale.h"

namespace sortition::kernels::cpu::top_p_kept_test {
namespace {

uint64_t summed_groups = 0;  // that SumWeights has summed, all calls together
int rankings = 0;            // calls of LastReaching
decltype(Kernels::SumWeights) sum_weights;
decltype(Kernels::LastReaching) last_reaching;

Target Counting(const Target& target) {
  Target counting = target;
  sum_weights = target.kernels.SumWeights;
  last_reaching = target.kernels.LastReaching;
  summed_groups = 0;
  rankings = 0;
  counting.kernels.SumWeights = [](const RowView& row, const uint32_t* groups, uint32_t count, Candidate last,
                                   const RowScale& scale) {
    summed_groups += count;
    return sum_weights(row, groups, count, last, scale);
  };
  counting.kernels.LastReaching = [](const Candidate* candidates, const uint64_t* weights, uint32_t count,
                                     law::Threshold threshold) {
    ++rankings;
    return last_reaching(candidates, weights, count, threshold);
  };
  return counting;
}

class TopPKeptTest : public ::testing::Test, protected sortition::testing::LaidRow {
 protected:
  // Samples the row on each target, and expects the reference's answer. Calls check(answer) when its calls are counted.
  template <typename Check>
  void ExpectReference(const RowRequest& request, Check check) {
    testing::ExpectReference(request, Counting, check);
  }

  void SetDraft(uint32_t token, float probability) {
    token_ = token;
    probability_ = std::bit_cast<uint32_t>(probability);
  }

  // A request to verify the draft. Refers to the members.
  RowRequest Draft() const {
    RowRequest request = Request();
    request.task = RowTask::kVerify;
    request.given = token_;
    request.draft = {
        .form = DraftDistribution::Form::kSparse, .sparse_tokens = {&token_, 1}, .sparse_bits = {&probability_, 1}};
    return request;
  }

 private:
  uint32_t token_ = 0;
  uint32_t probability_ = 0;  // its drafter's, as bits
};

// A head, and a tail that weighs less than the last kept token: a few groups decide which one that is. Where the
// threshold lies as near to a sum as it can, all groups are summed, each once. A bound that is too tight would miss it.
TEST_F(TopPKeptTest, KeptTokensAreCertainOrSummedOnce) {
  constexpr uint32_t kGroups = 500;
  constexpr uint64_t kRows = 60;
  const uint64_t rows = sortition::testing::Scaled(kRows);
  uint64_t by_few = 0;
  uint64_t by_all = 0;
  std::mt19937_64 random(8);
  for (uint64_t n = 0; n < rows; ++n) {
    SCOPED_TRACE(n);
    logits_.resize(kGroups * 64);
    LayAtRandom({.deviation = 2, .head = 200, .above = 14}, &random);
    Narrow(std::array{DType::kF32, DType::kF16, DType::kBF16}[n % 3]);
    allowed_.clear();
    if (n % 4 == 3) Mask([&](uint32_t) { return random() % 8 == 0; });
    law::Compile({.temperature = 1}, &parameters_);
    parameters_.kept_count = true;
    const std::vector<TokenBits> order = Order();
    const RowScale scale = MakeRowScale(parameters_, law::Key(order[0].bits));
    const auto weight = [&](TokenBits token) { return law::Weight(DistanceOfKey(law::Key(token.bits), scale)); };
    unsigned __int128 sum = 0;
    for (const TokenBits& token : order) sum += weight(token);
    unsigned __int128 prefix = 0;
    const size_t places = 1 + random() % 40;
    for (size_t i = 0; i < places; ++i) prefix += weight(order[i]);
    // The largest top-p whose threshold the prefix reaches.
    const auto edge = uint32_t((prefix << 32) / sum);
    for (const uint32_t top_p : {edge, edge + 1, edge - uint32_t(weight(order[places]) * 0x1p31 / double(sum))}) {
      parameters_.top_p = top_p;
      ExpectReference(Request(), [&](const RowOutput&) {
        EXPECT_LE(summed_groups, kGroups);
        by_few += summed_groups < kGroups / 2;
        by_all += summed_groups == kGroups;
      });
    }
    if (HasFailure()) return;
  }
  if (rows < kRows) return;
  EXPECT_GT(by_few, 0u);
  EXPECT_GT(by_all, 0u);
}

// A search among all tokens of a row takes longer than their sum, so bounds do not ask for a second one.
TEST_F(TopPKeptTest, ManyEqualTokensAreRankedOnce) {
  logits_.assign(300 * 64, 0);
  law::Compile({.temperature = 1, .top_p = 0.5f}, &parameters_);
  parameters_.kept_count = true;
  ExpectReference(Request(), [](const RowOutput&) { EXPECT_EQ(rankings, 1); });
}

// The draft would pass, but is the first token that top-p drops. The ruling on it tells what is kept.
TEST_F(TopPKeptTest, KeptTokensAreSearchedOnceForADraft) {
  std::mt19937_64 random(10);
  logits_.assign(1300 * 64, -30);
  for (uint32_t id = 0; id < 300 * 64; ++id) logits_[id] = -0.001f * float(random() % 1000);
  law::Compile({.temperature = 1, .top_p = 0.5f}, &parameters_);
  parameters_.kept_count = true;
  const uint32_t kept = law::SampleRowReference(Request()).kept;
  parameters_.kept_count = false;
  SetDraft(Order()[kept].token, 1e-6f);
  ExpectReference(Draft(), [](const RowOutput&) {
    EXPECT_EQ(rankings, 2) << "of a sample, and of the tokens at the end that it guesses";
  });
}

// The sample says that the first tokens do not reach the threshold, but they do.
TEST_F(TopPKeptTest, SampleThatMisleadsCostsOneMoreSum) {
  logits_.assign(600 * 64, -3);
  for (uint32_t id = 0; id < logits_.size(); ++id) {
    if (id / law::kGroupSize % (logits_.size() / 2048) != 0) logits_[id] = -12;
  }
  for (uint32_t id = 1; id < 300 * 64; id += 64) logits_[id] = 0;
  law::Compile({.temperature = 1, .top_p = 0.2f}, &parameters_);
  parameters_.kept_count = true;
  ExpectReference(Request(), [](const RowOutput&) { EXPECT_LE(summed_groups, 600u); });
}

// The sample says that the first tokens reach the threshold, but they do not: it meets none of the heavy groups. It is
// used again after the groups' maxima are weighed. If many equal maxima stood in its place, the search would not end.
TEST_F(TopPKeptTest, SampleOutlivesBounds) {
  logits_.assign(600 * 64, -12);
  for (uint32_t id = 64; id < logits_.size(); ++id) {
    if (id / law::kGroupSize % 2 == 1) logits_[id] = -4.5f;
  }
  for (uint32_t id = 1; id < 260 * 64; id += 64) logits_[id] = 0;
  for (const float top_p : {0.56f, 0.5677f, 0.58f}) {
    SCOPED_TRACE(top_p);
    law::Compile({.temperature = 1, .top_p = top_p}, &parameters_);
    parameters_.kept_count = true;
    ExpectReference(Request(), [](const RowOutput& answer) { EXPECT_GT(answer.kept, 260u); });
  }
}

// A draft that passes in a row with a light tail needs few groups. What bounds leave open is as the law says.
TEST_F(TopPKeptTest, DraftsPassByBoundsOrAsTheLawSays) {
  constexpr uint32_t kGroups = 500;
  constexpr uint64_t kRows = 200;
  const uint64_t rows = sortition::testing::Scaled(kRows);
  uint64_t accepted_by_few = 0;
  uint64_t accepted = 0;
  uint64_t rejected = 0;
  std::mt19937_64 random(9);
  for (uint64_t n = 0; n < rows; ++n) {
    SCOPED_TRACE(n);
    logits_.resize(kGroups * 64);
    LayAtRandom({.deviation = 2, .head = 50, .above = float(6 + random() % 10)}, &random);
    allowed_.clear();
    if (n % 4 == 3) Mask([&](uint32_t) { return random() % 8 == 0; });
    law::Compile({.temperature = 1, .top_p = n % 3 == 0 ? 1 : 0.8f, .min_p = n % 5 == 0 ? 0.01f : 0}, &parameters_);
    seed_ = random();
    SetDraft(Order()[random() % 4 * (random() % 4)].token, 0.4f);
    RowRequest request = Draft();
    if (n % 2 == 1) request.draft = {};
    ExpectReference(request, [&](const RowOutput& answer) {
      accepted_by_few += answer.accepted && summed_groups < kGroups / 2;
      accepted += answer.accepted;
      rejected += !answer.accepted;
    });
    if (HasFailure()) return;
  }
  if (rows < kRows) return;
  EXPECT_GT(accepted_by_few, 0u);
  EXPECT_GT(accepted, accepted_by_few);
  EXPECT_GT(rejected, 0u);
}

// The only sum is that of the raw logprob.
TEST_F(TopPKeptTest, ScoreOfRawLogprobIsNotFiltered) {
  logits_.assign(100 * 64, 0);
  law::Compile({.temperature = 1, .top_p = 0.5f}, &parameters_);
  parameters_.raw_logprob = true;
  RowRequest request = Request();
  request.task = RowTask::kScore;
  request.given = 77;
  ExpectReference(request, [](const RowOutput&) {
    EXPECT_EQ(summed_groups, 100u);
    EXPECT_EQ(rankings, 0);
  });
}

}  // namespace
}  // namespace sortition::kernels::cpu::top_p_kept_test
