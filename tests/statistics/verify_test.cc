// Rejection, of one draft and in rounds, and block verification leave no trace of the drafter: tokens are distributed
// as without speculation, over 3,240,000 drafted sequences in all.
//
// Every test has a fixed seed, as in draw_test.cc: for a random one a correct sampler fails with less than
// testing::kFailureProbability.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <optional>
#include <random>

#include "kernels/law/block.h"
#include "tests/statistics/chi_square.h"
#include "tests/statistics/prepared_row.h"
#include "tests/support/scale.h"

namespace sortition::kernels::cpu::verify_test {
namespace {

using law::SamplingParameters;
using sortition::testing::ExpectCounts;
using sortition::testing::Scaled;

constexpr uint32_t kTokens = 20;

// Bins that the counts must fill; they grow with the root of the draws.
int LeastBins() { return std::clamp(int(40 * std::sqrt(testing::TestScale())), 2, 20); }

// Knowledge of the target's logits that a drafter has: the logits with some noise, next to nothing, or all except their
// leading tokens.
enum class Drafter { kClose, kBlind, kWrong };

struct Combination {
  Drafter drafter;
  DraftDistribution::Form form;
  SamplingParameters chain;
};

// A model of one token's memory and its drafter.
class Bigrams {
 public:
  Bigrams(const Combination& combination, uint64_t seed) : random_(seed), form_(combination.form) {
    for (uint32_t context = 0; context < kTokens; ++context) {
      std::vector<float> logits(kTokens);
      for (float& x : logits) x = float(random_() % 4096) / 1024 - 2;
      logits[random_() % kTokens] += 2;
      std::vector<float> guess = logits;
      for (float& x : guess) {
        if (combination.drafter == Drafter::kClose) x += float(random_() % 1024) / 1024 - 0.5f;
        if (combination.drafter == Drafter::kBlind) x = float(random_() % 1024) / 1024;
        if (combination.drafter == Drafter::kWrong) x = -x;
      }
      rows_.push_back(std::make_unique<PreparedRow>(logits, combination.chain));
      p_.push_back(Softmax(logits, combination.chain.temperature,
                           [&](uint32_t id) { return rows_.back()->Keeps(law::CanonicalBits(logits[id]), id); }));
      std::vector<double> q = Softmax(guess, 1, [](uint32_t) { return true; });
      // A list of the drafter's own leading tokens.
      if (form_ == DraftDistribution::Form::kSparse) {
        q = Softmax(guess, 1, [&](uint32_t id) { return q[id] > 0.04; });
      }
      if (form_ == DraftDistribution::Form::kCertain) {
        const uint32_t first = uint32_t(std::max_element(q.begin(), q.end()) - q.begin());
        for (uint32_t id = 0; id < kTokens; ++id) q[id] = id == first;
      }
      q_.push_back(q);
      std::vector<float>& dense = dense_.emplace_back(q.begin(), q.end());
      std::vector<uint32_t>& tokens = listed_tokens_.emplace_back();
      std::vector<uint32_t>& bits = listed_bits_.emplace_back();
      for (uint32_t id = 0; id < kTokens; ++id) {
        if (dense[id] == 0) continue;
        tokens.push_back(id);
        bits.push_back(std::bit_cast<uint32_t>(dense[id]));
      }
    }
  }

  const std::vector<double>& p(uint32_t context) const { return p_[context]; }

  // Two tokens after token 0, drafted together and verified.
  uint32_t DrawPair(uint64_t seed) {
    const uint32_t first_draft = Draft(0);
    const uint32_t second_draft = Draft(first_draft);
    const uint32_t first = rows_[0]->Verify({seed, 1, 0}, first_draft, DistributionOf(0), &accepted_);
    if (first != first_draft) return first * kTokens + rows_[first]->Draw({seed, 2, 0});
    return first * kTokens + rows_[first]->Verify({seed, 2, 0}, second_draft, DistributionOf(first), &accepted_);
  }

  // The same, by block verification.
  uint32_t DrawPairOfBlock(uint64_t seed) {
    const uint32_t drafts[] = {Draft(0), 0};
    const uint32_t second = Draft(drafts[0]);
    const auto words = law::BlockWords(law::ToDrawKey({seed, 3, 0}));
    const RowOutput first = rows_[0]->VerifyBlock({seed, 1, 0}, drafts[0], DistributionOf(0), uint64_t{1} << 32);
    RowOutput last;
    bool ends_second = false;
    bool ends_third = false;
    if (first.survival != 0) {
      last = rows_[drafts[0]]->VerifyBlock({seed, 2, 0}, second, DistributionOf(drafts[0]), first.survival);
      ends_second = last.accepted;
      ends_third = last.survival != 0 && law::MayEndAfter(law::WordOf(words, 1), last.survival);
    }
    accepted_ += ends_third ? 2 : ends_second ? 1 : 0;
    if (ends_third) return drafts[0] * kTokens + second;
    if (ends_second) return drafts[0] * kTokens + last.token;
    return first.token * kTokens + rows_[first.token]->Draw({seed, 2, 0});
  }
  // Two tokens after token 0, with up to three drafts of each, tested in rounds.
  uint32_t DrawPairOfTree(uint64_t seed, bool with_replacement) {
    const uint32_t first = DrawOfRounds({seed, 1, 0}, 0, with_replacement);
    return first * kTokens + DrawOfRounds({seed, 2, 0}, first, with_replacement);
  }
  uint64_t accepted() const { return accepted_; }

 private:
  uint32_t DrawOfRounds(const NoiseKey& noise, uint32_t context, bool with_replacement) {
    std::vector<double> left = q_[context];
    std::vector<uint32_t> drafts;
    while (drafts.size() < 3 && *std::ranges::max_element(left) > 0) {
      drafts.push_back(std::discrete_distribution<uint32_t>(left.begin(), left.end())(random_));
      if (!with_replacement) left[drafts.back()] = 0;
    }
    DraftDistribution draft = DistributionOf(context);
    draft.with_replacement = with_replacement;
    const RowOutput answer = rows_[context]->VerifyRounds(noise, drafts, draft);
    accepted_ += answer.accepted;
    return answer.token;
  }

  template <typename Keep>
  static std::vector<double> Softmax(const std::vector<float>& logits, double temperature, Keep keep) {
    std::vector<double> probabilities(logits.size());
    double sum = 0;
    for (uint32_t id = 0; id < logits.size(); ++id) {
      if (keep(id)) probabilities[id] = std::exp(logits[id] / temperature);
      sum += probabilities[id];
    }
    for (double& p : probabilities) p /= sum;
    return probabilities;
  }

  uint32_t Draft(uint32_t context) {
    return std::discrete_distribution<uint32_t>(q_[context].begin(), q_[context].end())(random_);
  }

  DraftDistribution DistributionOf(uint32_t context) const {
    DraftDistribution draft;
    draft.form = form_;
    draft.dense = dense_[context].data();
    if (form_ == DraftDistribution::Form::kSparse) {
      draft.sparse_tokens = listed_tokens_[context];
      draft.sparse_bits = listed_bits_[context];
    }
    return draft;
  }

  std::mt19937_64 random_;
  uint64_t accepted_ = 0;  // drafts
  const DraftDistribution::Form form_;
  std::vector<std::unique_ptr<PreparedRow>> rows_;
  std::vector<std::vector<double>> p_, q_;
  std::vector<std::vector<float>> dense_;
  std::vector<std::vector<uint32_t>> listed_tokens_, listed_bits_;
};

// Each form meets each drafter and each chain, unless `form` is given.
Bigrams ModelOf(int parameter, std::optional<DraftDistribution::Form> form = std::nullopt) {
  const SamplingParameters chains[] = {
      {}, {.temperature = 0.7f, .top_k = 12, .top_p = 0.9f}, {.temperature = 1.5f, .min_p = 0.15f}};
  const int drafter = parameter / 3;
  const int chain = parameter % 3;
  return Bigrams({Drafter(drafter), form.value_or(DraftDistribution::Form((drafter + chain) % 3)), chains[chain]},
                 7100 + uint64_t(parameter));
}

std::vector<double> JointOf(const Bigrams& model) {
  std::vector<double> joint(kTokens * kTokens);
  for (uint32_t i = 0; i < joint.size(); ++i) joint[i] = model.p(0)[i / kTokens] * model.p(i / kTokens)[i % kTokens];
  return joint;
}

class Rejection : public ::testing::TestWithParam<int> {};

TEST_P(Rejection, DistributionIsTheTargets) {
  Bigrams model = ModelOf(GetParam());
  std::vector<uint64_t> counts(kTokens * kTokens);
  const uint64_t sequences = Scaled(120'000);
  for (uint64_t n = 0; n < sequences; ++n) ++counts[model.DrawPair(n * 9 + uint64_t(GetParam()))];
  ExpectCounts(counts, JointOf(model), LeastBins());
}

INSTANTIATE_TEST_SUITE_P(, Rejection, ::testing::Range(0, 9));

class BlockVerification : public ::testing::TestWithParam<int> {};

// Accepts no fewer drafts than rejection does in an equal number of other trials, up to 6 standard deviations of the
// difference.
TEST_P(BlockVerification, DistributionIsTheTargets) {
  Bigrams model = ModelOf(GetParam());
  Bigrams rejecting = ModelOf(GetParam());
  std::vector<uint64_t> counts(kTokens * kTokens);
  const uint64_t sequences = Scaled(120'000);
  for (uint64_t n = 0; n < sequences; ++n) {
    ++counts[model.DrawPairOfBlock(n * 9 + uint64_t(GetParam()))];
    rejecting.DrawPair(n * 9 + uint64_t(GetParam()));
  }
  ExpectCounts(counts, JointOf(model), LeastBins());
  EXPECT_GE(double(model.accepted()), double(rejecting.accepted()) - 6 * std::sqrt(2.0 * double(sequences)));
}

INSTANTIATE_TEST_SUITE_P(, BlockVerification, ::testing::Range(0, 9));

class RejectionInRounds : public ::testing::TestWithParam<int> {};

// Half of the sequences are drafted with replacement.
TEST_P(RejectionInRounds, DistributionIsTheTargets) {
  Bigrams model = ModelOf(GetParam(), DraftDistribution::Form(1 + GetParam() % 2));
  std::vector<uint64_t> counts(kTokens * kTokens);
  const uint64_t sequences = Scaled(120'000);
  for (uint64_t n = 0; n < sequences; ++n) ++counts[model.DrawPairOfTree(n * 9 + uint64_t(GetParam()), n % 2 == 0)];
  ExpectCounts(counts, JointOf(model), LeastBins());
  // The first three drafters are close: of two tokens more than one is accepted.
  EXPECT_TRUE(GetParam() >= 3 || model.accepted() > sequences) << model.accepted();
}

INSTANTIATE_TEST_SUITE_P(, RejectionInRounds, ::testing::Range(0, 9));

// A vocabulary large enough that the race runs group by group.
TEST(RejectionAtVocabulary2000, DistributionIsTheTargets) {
  std::mt19937_64 random(72);
  std::vector<float> logits(2000), q(2000);
  double sum = 0;
  double drafted = 0;
  std::vector<double> p(2000);
  for (size_t id = 0; id < logits.size(); ++id) {
    logits[id] = float(random() % 8192) / 1024 - 4 + (id % 300 == 0 ? 4 : 0);
    p[id] = std::exp(double(logits[id]));
    q[id] = float(std::exp(double(logits[id]) + double(random() % 2048) / 1024 - 1));
    sum += p[id];
    drafted += q[id];
  }
  for (double& x : p) x /= sum;
  for (float& x : q) x = float(double(x) / drafted);
  PreparedRow row(logits, {});
  DraftDistribution draft;
  draft.form = DraftDistribution::Form::kDense;
  draft.dense = q.data();
  std::discrete_distribution<uint32_t> drafter(q.begin(), q.end());
  std::vector<uint64_t> counts(2000);
  for (uint64_t n = 0; n < Scaled(400'000); ++n) ++counts[row.Verify({73, uint32_t(n), 0}, drafter(random), draft)];
  ExpectCounts(counts, p, LeastBins());
}

}  // namespace
}  // namespace sortition::kernels::cpu::verify_test
