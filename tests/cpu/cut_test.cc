// Certified cuts: what a chain's stage keeps, decided from bounds on the sums that it needs.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/chain/chain_run.h"
#include "kernels/cpu/race.h"
#include "kernels/cpu/sample_row.h"
#include "kernels/cpu/select.h"
#include "kernels/cpu/sums.h"
#include "kernels/law/chain.h"
#include "kernels/law/parameters.h"
#include "kernels/law/reference.h"
#include "kernels/law/reference_chain.h"
#include "kernels/law/row_law.h"
#include "tests/cpu/on_targets.h"
#include "tests/support/laid_row.h"
#include "tests/support/scale.h"

namespace sortition::kernels::cpu::cut_test {
namespace {

using sortition::testing::kOctave;

struct Sampler {
  const char* name;
  law::SamplingParameters options;
};

const Sampler kSamplers[] = {
    {"epsilon", {.temperature = kOctave, .epsilon_cutoff = 1e-3f}},
    {"epsilon of a few", {.temperature = 0.8f, .epsilon_cutoff = 3e-4f}},
    {"eta", {.temperature = kOctave, .eta_cutoff = 1e-3f}},
    {"top_a", {.temperature = 1, .top_a = 0.1f}},
    {"p_less", {.temperature = kOctave, .p_less = true}},
    {"xtc", {.temperature = kOctave, .xtc_probability = 1, .xtc_threshold = 0.1f}},
    {"mirostat", {.temperature = 1, .mirostat = 2}},
    {"typical", {.temperature = kOctave, .typical_p = 0.9f}},
    {"typical of a few", {.temperature = 0.8f, .typical_p = 0.3f}},
    {"epsilon, then top-p", {.temperature = 1, .top_p = 0.9f, .epsilon_cutoff = 1e-3f}},
    {"epsilon, then top-k",
     {.temperature = 1,
      .top_k = 4,
      .epsilon_cutoff = 1e-3f,
      .order = {law::Sampler::kTemperature, law::Sampler::kEpsilonCutoff, law::Sampler::kTopK}}},
    {"epsilon of five", {.temperature = 1, .epsilon_cutoff = 0.1f, .min_keep = 5}},
};

class CutTest : public ::testing::Test, protected sortition::testing::LaidRow {
 protected:
  RowRequest Request() const {
    RowRequest request = LaidRow::Request();
    request.sampler_state = InitialSamplerState(parameters_.chain);
    return request;
  }

  // Calls check(kernels, row, scratch) on each target.
  template <typename Check>
  void OnAllTargets(Check check) {
    testing::OnAllTargets(Request(), check);
  }

  // Runs the chain on all targets and compares what it keeps with the law. Expects that `by` decided the last cut.
  void ExpectCut(SumStep by) {
    const RowRequest of_reference = Request();
    law::ReferenceChain reference(of_reference, Order(), std::nullopt);
    ASSERT_FALSE(reference.Run());
    std::vector<uint32_t> expected;
    for (const TokenBits& token : reference.kept()) expected.push_back(token.token);
    std::ranges::sort(expected);
    OnAllTargets([&](const Kernels& kernels, const RowView& row, Scratch* scratch) {
      const RowRequest request = Request();
      Chain chain(kernels, request, row, scratch);
      chain.Run(false);
      const Candidate last = chain.kept().last;
      std::vector<uint32_t> kept;
      for (const Candidate& token : CollectNotAfter(kernels, chain.row(), last, scratch, &scratch->requested)) {
        kept.push_back(token.token());
      }
      std::ranges::sort(kept);
      EXPECT_EQ(kept, expected);
      EXPECT_EQ(int(chain.step()), int(by));
    });
  }

  // Races as SampleRow does, and returns the step that decided.
  SumStep Race(const Kernels& kernels, const RowRequest& request, const RowView& row, Scratch* scratch) {
    Chain chain(kernels, request, row, scratch);
    chain.Run(true);
    for (;;) {
      const uint32_t token =
          Draw(kernels, chain.row(), chain.scale(), chain.kept(), law::ToDrawKey(request.noise), std::nullopt, scratch);
      const std::vector<TokenBits> order = Order();
      const uint32_t bits = std::ranges::find(order, token, &TokenBits::token)->bits;
      if (chain.Keeps(Candidate::Of(law::Key(bits), token))) return chain.step();
    }
  }
};

// 64 equal tokens in each of the other groups: the upper bounds are met. So a bound that is a little tighter fails.
TEST_F(CutTest, BoundsOfMomentsHoldAndAreMet) {
  law::Compile({.temperature = kOctave}, &parameters_);
  const uint32_t level = law::Key(law::CanonicalBits(-2.5f));
  const auto check = [&](bool is_met) {
    OnAllTargets([&](const Kernels& kernels, const RowView& row, Scratch* scratch) {
      const RowScale scale = MakeRowScale(parameters_, row.max_key);
      Moments all;
      for (const TokenBits& token : Order()) {
        const uint32_t t = DistanceOfKey(law::Key(token.bits), scale);
        all.sum += law::Weight(t);
        all.moment += law::Moment(t);
        all.square += law::SquaredWeight(t);
      }
      const auto expect = [&](SumBounds bounds, uint64_t sum) {
        EXPECT_LE(bounds.low, sum);
        EXPECT_GE(bounds.high, sum);
        EXPECT_TRUE(!is_met || bounds.high - sum < sum >> 12);
      };
      for (const MomentsWanted wanted : {MomentsWanted::kSum, MomentsWanted::kMoment, MomentsWanted::kSquare}) {
        const MomentBounds bounds = BoundMoments(kernels, row, level, scale, wanted, scratch);
        expect(bounds.sum, all.sum);
        if (wanted == MomentsWanted::kMoment) expect(bounds.other, all.moment);
        if (wanted == MomentsWanted::kSquare) expect(bounds.other, all.square);
      }
    });
  };
  logits_.assign(100 * law::kGroupSize, 0);
  for (uint32_t id = 0; id < logits_.size(); ++id) logits_[id] = -0.03f * float(id / law::kGroupSize);
  check(true);
  std::mt19937_64 random(5);
  for (uint64_t n = 0; n < sortition::testing::Scaled(100); ++n) {
    for (float& logit : logits_) logit = -float(random() % 8000) / 1000;
    edits_.clear();
    for (uint32_t id = uint32_t(random() % 64); n % 2 == 0 && id < logits_.size(); id += 1 + uint32_t(random() % 200)) {
      edits_.push_back({.token = id,
                        .flags = random() % 4 == 0 ? uint32_t{LogitEdit::kBanned} : 0,
                        .penalty = law::CanonicalBits(-float(random() % 4))});
    }
    check(false);
  }
}

// Near 0 a moment rises with the distance, so maxima bound nothing there.
TEST_F(CutTest, MomentsNearTheFirstTokenHaveNoBound) {
  law::Compile({.temperature = kOctave}, &parameters_);
  logits_.assign(100 * law::kGroupSize, -1);
  logits_[0] = 0;
  OnAllTargets([&](const Kernels& kernels, const RowView& row, Scratch* scratch) {
    const RowScale scale = MakeRowScale(parameters_, row.max_key);
    for (const auto& [level, none] : {std::pair(-1.4f, true), std::pair(-1.6f, false)}) {
      const uint32_t key = law::Key(law::CanonicalBits(level));
      const MomentBounds bounds = BoundMoments(kernels, row, key, scale, MomentsWanted::kMoment, scratch);
      EXPECT_EQ(bounds.other.high == SumBounds::kNoBound, none) << level;
    }
  });
}

// The first tokens are 4 groups' alone, and the other groups weigh next to nothing.
TEST_F(CutTest, LeadingGroupsDecideWherePeaked) {
  for (const Sampler& sampler : kSamplers) {
    if (sampler.options.min_keep != 0 || sampler.options.top_p != 1) continue;
    SCOPED_TRACE(sampler.name);
    law::Compile(sampler.options, &parameters_);
    std::vector<std::pair<uint32_t, float>> logits;
    for (uint32_t i = 0; i < 100; ++i) logits.push_back({i % 4 * 64 + i / 4, -0.3f * float(i)});
    for (uint32_t group = 4; group < 1100; ++group) logits.push_back({group * 64, -100 - 0.01f * float(group)});
    Lay(1100, logits);
    ExpectCut(SumStep::kLeadingGroups);
  }
}

// The bounds of a full row are far apart, and tokens are everywhere.
TEST_F(CutTest, RowDecidesWhereTokensAreEverywhere) {
  std::mt19937_64 random(3);
  for (const Sampler& sampler : kSamplers) {
    if (sampler.options.min_keep != 0 || sampler.options.top_p != 1) continue;
    SCOPED_TRACE(sampler.name);
    law::Compile(sampler.options, &parameters_);
    logits_.resize((sampler.options.typical_p != 1 ? 1100 : 400) * 64);
    for (float& logit : logits_) logit = -float(random() % 16'000) / 1000;
    logits_[77] = sampler.options.xtc_probability != 0 ? 9 : 4;
    ExpectCut(SumStep::kRow);
  }
}

// The other groups' bound leaves open whether the fifth token reaches XTC's threshold.
TEST_F(CutTest, RowDecidesWhetherATokenReachesXtc) {
  law::Compile({.temperature = kOctave, .xtc_probability = 1, .xtc_threshold = 0.1f}, &parameters_);
  for (const float fifth : {-0.5f, -1.05f}) {
    std::vector<std::pair<uint32_t, float>> logits = {{0, 0}, {1, 0}, {2, 0}, {3, 0}, {4, fifth}};
    for (uint32_t group = 1; group < 400; ++group) logits.push_back({group * 64, -12 - 0.001f * float(group)});
    Lay(400, logits);
    ExpectCut(SumStep::kRow);
  }
}

// The mean is certain enough for the order of nearness. How much of it typical-p keeps is not.
TEST_F(CutTest, RowDecidesHowManyTypicalTokensStay) {
  law::Compile({.temperature = kOctave, .typical_p = 0.9f}, &parameters_);
  std::vector<std::pair<uint32_t, float>> logits;
  for (uint32_t i = 0; i < 6; ++i) logits.push_back({i, i < 4 ? 0 : -1});
  for (uint32_t i = 0; i < 60; ++i) logits.push_back({64 + i, -6 - 0.01f * float(i)});
  for (uint32_t group = 2; group < 1100; ++group) logits.push_back({group * 64, -20 - 0.001f * float(group)});
  Lay(1100, logits);
  ExpectCut(SumStep::kRow);
}

// Many equal tokens are not looked at for typical-p before the row is summed.
TEST_F(CutTest, RowDecidesWhereManyTokensAreEqual) {
  law::Compile({.temperature = kOctave, .typical_p = 0.9f}, &parameters_);
  for (const uint32_t groups : {4u, 200u, 270u}) {
    std::vector<std::pair<uint32_t, float>> logits;
    for (uint32_t i = 0; i < groups * 64; ++i) logits.push_back({i, groups == 4 ? -0.001f * float(i % 1000) : 0});
    for (uint32_t group = groups; group < 1100; ++group) logits.push_back({group * 64, -60 - 0.01f * float(group)});
    Lay(1100, logits);
    ExpectCut(groups == 4 ? SumStep::kLeadingGroups : SumStep::kRow);
  }
}

// All groups have one maximum, and all tokens lie at the cut. A caller could have such a row summed twice.
TEST_F(CutTest, RowsOfOneMaximumAreSummedOnce) {
  logits_.assign(1 << 17, 0);
  static decltype(Kernels::NearMoments) near_moments;
  static uint32_t groups;
  for (const Sampler& sampler : kSamplers) {
    SCOPED_TRACE(sampler.name);
    law::SamplingParameters options = sampler.options;
    if (options.epsilon_cutoff != 0) options.epsilon_cutoff = 0x1p-17f;
    law::Compile(options, &parameters_);
    const RowOutput expected = law::SampleRowReference(Request());
    for (const Target* target : RunnableTargets()) {
      Target counted = *target;
      near_moments = counted.kernels.NearMoments;
      groups = 0;
      counted.kernels.NearMoments = [](const RowView& row, const uint32_t* listed, uint32_t count,
                                       const RowScale& scale, MomentsWanted wanted) {
        groups += count;
        return near_moments(row, listed, count, scale, wanted);
      };
      Scratch scratch;
      RowOutput answer;
      SampleRow(counted, Request(), &scratch, &answer);
      EXPECT_EQ(answer, expected) << target->name;
      EXPECT_EQ(groups, 0u) << target->name;
    }
  }
}

// Rows and noise of many kinds: the answers are the reference's, and each step decides some draws and some cuts.
TEST_F(CutTest, AnswersEqualTheReference) {
  std::mt19937_64 random(7);
  constexpr uint64_t kRows = 330;
  const uint64_t rows = sortition::testing::Scaled(kRows);
  std::array<std::array<uint64_t, 2>, std::size(kSamplers)> decided = {};
  for (uint64_t n = 0; n < rows; ++n) {
    const size_t which = n % std::size(kSamplers);
    SCOPED_TRACE(::testing::Message() << n << " " << kSamplers[which].name);
    const uint32_t many = kSamplers[which].options.typical_p != 1 ? 66'000 : 25'000;
    logits_.resize(random() % 3 == 0 ? 1 + random() % 10'000 : many + random() % 10'000);
    static constexpr float kSpreads[] = {0.001f, 0.3f, 1, 3};
    const float spread = kSpreads[random() % 4];
    static constexpr uint64_t kHeads[] = {0, 10, 20, 300};
    const uint64_t head = kHeads[n / std::size(kSamplers) % 4];
    const float above = random() % 3 == 0 ? 3 : 25;
    LayAtRandom({.deviation = spread, .head = head, .above = above, .has_ties = n % 7 == 0}, &random);
    edits_.clear();
    if (random() % 4 == 0) EditAtRandom(&random);
    law::Compile(kSamplers[which].options, &parameters_);
    seed_ = random();
    for (const bool is_counted : {false, true}) {
      parameters_.kept_count = is_counted;
      RowRequest request = Request();
      const RowOutput expected = law::SampleRowReference(request);
      if (n % 5 == 0) request.likely = expected.token;
      for (const Target* target : RunnableTargets()) {
        Scratch scratch;
        RowOutput answer;
        SampleRow(*target, request, &scratch, &answer);
        ASSERT_EQ(answer, expected) << target->name << is_counted;
      }
    }
    const RowRequest request = Request();
    OnAllTargets([&](const Kernels& kernels, const RowView& row, Scratch* scratch) {
      ++decided[which][size_t(Race(kernels, request, row, scratch))];
    });
    if (HasFailure()) return;
  }
  if (rows < kRows) return;
  for (size_t which = 0; which < std::size(kSamplers); ++which) {
    if (kSamplers[which].options.top_p != 1) continue;
    for (const SumStep step : {SumStep::kLeadingGroups, SumStep::kRow}) {
      EXPECT_GT(decided[which][size_t(step)], 0u) << kSamplers[which].name << " " << int(step);
    }
  }
}

}  // namespace
}  // namespace sortition::kernels::cpu::cut_test
