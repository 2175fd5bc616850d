// Block verification accepts no fewer drafts than rejection, on drafts of the demo's model: its bigrams draft, its
// trigrams verify.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "client/demo/language_model.h"
#include "kernels/cpu/sample_row.h"
#include "kernels/law/block.h"
#include "kernels/law/parameters.h"

namespace sortition::demo::drafted_blocks_test {
namespace {

using kernels::RowRequest;

constexpr uint32_t kDrafts = 4;

// One position of a recorded block: the target's logits, the drafter's probabilities and the draft.
struct Position {
  std::vector<float> logits;
  std::vector<float> q;
  uint32_t draft = 0;
};

// Blocks of drafts after prefixes of the tales.
class DraftedBlocks : public ::testing::Test {
 protected:
  static std::vector<std::vector<Position>> Record(uint32_t blocks) {
    const std::vector<std::string_view> tales = Tales();
    const LanguageModel model(tales);
    std::mt19937_64 random(41);
    std::vector<std::vector<Position>> recorded(blocks);
    for (std::vector<Position>& block : recorded) {
      const std::vector<uint32_t> text = model.Encode(tales[random() % tales.size()]);
      std::vector<uint32_t> context(text.begin(), text.begin() + std::ptrdiff_t(random() % text.size()));
      for (uint32_t i = 0; i < kDrafts; ++i) {
        Position& at = block.emplace_back();
        at.logits = model.Logits(context);
        for (const float logit : model.Logits(context, 2)) at.q.push_back(std::exp(logit));
        at.draft = std::discrete_distribution<uint32_t>(at.q.begin(), at.q.end())(random);
        context.push_back(at.draft);
      }
    }
    return recorded;
  }

  // Verifies the draft of one position.
  static kernels::RowOutput Verify(const Position& at, const kernels::RowParameters& parameters, uint64_t survival,
                                   const kernels::NoiseKey& noise) {
    RowRequest request;
    request.logits = at.logits.data();
    request.live_vocabulary = uint32_t(at.logits.size());
    request.parameters = &parameters;
    request.noise = noise;
    request.task = kernels::RowTask::kVerify;
    request.given = at.draft;
    request.draft.form = kernels::DraftDistribution::Form::kDense;
    request.draft.dense = at.q.data();
    request.survival = survival;
    static kernels::cpu::Scratch scratch;
    kernels::RowOutput answer;
    kernels::cpu::SampleRow(request, &scratch, &answer);
    EXPECT_EQ(answer.error, kernels::RowFault::kNone);
    return answer;
  }
};

// The chance that the first n drafts are accepted is at least rejection's, for each n of each block.
TEST_F(DraftedBlocks, AcceptNoFewerThanRejection) {
  law::SamplingParameters options[2];
  options[1].temperature = 0.8f;
  options[1].top_k = 200;
  for (const law::SamplingParameters& chain : options) {
    kernels::RowParameters parameters;
    law::Compile(chain, &parameters);
    double by_block = 0;
    double by_rejection = 0;
    double drawn_by_block = 0;
    double drawn_by_rejection = 0;
    uint64_t seed = 0;
    for (const std::vector<Position>& block : Record(400)) {
      uint64_t survival = RowRequest::kCertainSurvival;
      double chance = 1;
      uint32_t end = 0;
      bool all_accepted = true;
      ++seed;
      for (uint32_t i = 0; i < kDrafts; ++i) {
        const kernels::NoiseKey noise = {seed, i, 0};
        const double alone =
            double(Verify(block[i], parameters, RowRequest::kCertainSurvival, noise).survival) * 0x1p-32;
        const kernels::RowOutput of_block = Verify(block[i], parameters, survival, noise);
        if (of_block.accepted) end = i;
        survival = of_block.survival;
        chance *= alone;
        EXPECT_GE(double(survival) * 0x1p-32, chance - double(i + 1) * 0x1p-32);
        by_block += double(survival) * 0x1p-32;
        by_rejection += chance;
        all_accepted = all_accepted && Verify(block[i], parameters, RowRequest::kNoBlock, noise).accepted;
        drawn_by_rejection += all_accepted;
        if (survival == 0) break;
      }
      const law::PhiloxWords words = law::BlockWords(law::ToDrawKey({seed, kDrafts, 0}));
      if (survival != 0 && law::MayEndAfter(law::WordOf(words, 1), survival)) end = kDrafts;
      drawn_by_block += end;
    }
    EXPECT_GT(by_block, 1.02 * by_rejection);
    // The counts are off their expectations by at most 5 standard deviations, of at most kDrafts / 2 a block.
    const double most = 5 * std::sqrt(double(seed)) * kDrafts / 2;
    EXPECT_NEAR(drawn_by_rejection, by_rejection, most);
    EXPECT_NEAR(drawn_by_block, by_block, most);
  }
}

}  // namespace
}  // namespace sortition::demo::drafted_blocks_test
