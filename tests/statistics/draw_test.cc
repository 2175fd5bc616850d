// Tokens are drawn with the probabilities of the softmax, independently of each other.
//
// Every test has a fixed seed. A correct sampler fails one with a probability below testing::kFailureProbability over
// the choice of that seed, so all of them together with less than 10^-6.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/cpu/sample_row.h"
#include "tests/statistics/chi_square.h"
#include "tests/statistics/prepared_row.h"
#include "tests/support/scale.h"

namespace sortition::kernels::cpu::draw_test {
namespace {

using law::SamplingParameters;
using sortition::testing::ExpectCounts;
using sortition::testing::Scaled;

// Bulk and head as a language model's: most tokens far down, a few hundred in the running.
std::vector<float> ModelLogits(uint32_t vocabulary, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> logits(vocabulary);
  for (float& x : logits)
    x = float(random() >> 40) * 0x1p-22f - 2 + (random() % 100 == 0 ? 4 + float(random() % 512) / 100 : 0);
  return logits;
}

// The softmax over the tokens with `keep` true.
template <typename Keep>
std::vector<double> Softmax(const std::vector<float>& logits, double temperature, Keep keep) {
  std::vector<double> probabilities(logits.size());
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (uint32_t id = 0; id < logits.size(); ++id) {
    probabilities[id] = keep(id) ? std::exp((logits[id] - max) / temperature) : 0;
    sum += probabilities[id];
  }
  for (double& p : probabilities) p /= sum;
  return probabilities;
}

bool All(uint32_t) { return true; }

TEST(Draw, WholeKernelAtVocabulary1000) {
  const std::vector<float> logits = ModelLogits(1000, 1);
  PreparedRow row(logits, {.temperature = 0.8f});
  RowRequest request = row.request();
  Scratch scratch;
  RowOutput answer;
  std::vector<uint64_t> counts(1000);
  for (uint64_t n = 0; n < Scaled(4'000'000); ++n) {
    request.noise = {101, uint32_t(n), 0};
    SampleRow(request, &scratch, &answer);
    ++counts[answer.token];
  }
  ExpectCounts(counts, Softmax(logits, 0.8f, All), 5);
}

TEST(Draw, EqualLogitsAreEquallyLikely) {
  PreparedRow row(std::vector<float>(1000, -4.5f), {});
  std::vector<uint64_t> counts(1000);
  for (uint64_t n = 0; n < Scaled(4'000'000); ++n) ++counts[row.Draw({102, uint32_t(n), 0})];
  ExpectCounts(counts, std::vector<double>(1000, 1e-3), 5);
}

// Two million draws each.
class LargeVocabulary : public ::testing::TestWithParam<float> {};

TEST_P(LargeVocabulary, FollowsTheSoftmax) {
  const float temperature = GetParam();
  const std::vector<float> logits = ModelLogits(16384, 3);
  PreparedRow row(logits, {.temperature = temperature});
  std::vector<uint64_t> counts(logits.size());
  for (uint64_t n = 0; n < Scaled(2'000'000); ++n) ++counts[row.Draw({103, uint32_t(n), 7})];
  ExpectCounts(counts, Softmax(logits, temperature, All), 5);
}

INSTANTIATE_TEST_SUITE_P(Draw, LargeVocabulary, ::testing::Values(0.8f, 1.0f));

// Noise of too few bits cannot reach 20 nats down; the tail then never wins.
TEST(Draw, TailAtTwentyNatsFollows) {
  std::vector<float> logits(16384, -20.0f);
  logits[12345] = 0;
  PreparedRow row(logits, {});
  uint64_t hits = 0;
  const uint64_t draws = Scaled(4'000'000);
  for (uint64_t n = 0; n < draws; ++n) hits += row.Draw({104, uint32_t(n), 0}) != 12345;
  // Hits are binomial, as good as Poisson; its tails are incomplete gamma functions.
  const double mean = double(draws) * Softmax(logits, 1, All)[0] * 16383;
  const double at_most = sortition::testing::UpperGamma(double(hits) + 1, mean);
  const double at_least = hits == 0 ? 1 : 1 - sortition::testing::UpperGamma(double(hits), mean);
  EXPECT_GT(at_most, sortition::testing::kFailureProbability / 2) << hits << " hits, expected " << mean;
  EXPECT_GT(at_least, sortition::testing::kFailureProbability / 2) << hits << " hits, expected " << mean;
}

TEST(Draw, SeedsAndStreamsVaryLikePositions) {
  const std::vector<float> logits = ModelLogits(1000, 5);
  PreparedRow row(logits, {.temperature = 1.3f});
  std::vector<uint64_t> by_seed(1000);
  std::vector<uint64_t> by_stream(1000);
  for (uint64_t n = 0; n < Scaled(1'000'000); ++n) {
    ++by_seed[row.Draw({n, 17, 0})];
    ++by_stream[row.Draw({105, 17, uint32_t(n)})];
  }
  const std::vector<double> probabilities = Softmax(logits, 1.3f, All);
  ExpectCounts(by_seed, probabilities, 5);
  ExpectCounts(by_stream, probabilities, 5);
}

TEST(Draw, FiltersRenormalise) {
  const std::vector<float> logits = ModelLogits(1000, 6);
  PreparedRow row(logits, {.temperature = 1.2f, .top_k = 60, .top_p = 0.9f, .min_p = 0.005f});
  std::vector<uint64_t> counts(1000);
  for (uint64_t n = 0; n < Scaled(2'000'000); ++n) ++counts[row.Draw({106, uint32_t(n), 0})];
  const auto kept = [&](uint32_t id) { return row.Keeps(law::CanonicalBits(logits[id]), id); };
  ExpectCounts(counts, Softmax(logits, 1.2f, kept), 3);
}

// Masks take away owners of groups; the others' noise must stay as it was.
TEST(Draw, MasksRenormalise) {
  const std::vector<float> logits = ModelLogits(1000, 7);
  std::vector<uint32_t> allowed;
  for (uint32_t id = 0; id < 1000; ++id) {
    if (id * 37 % 11 < 3) allowed.push_back(id);
  }
  PreparedRow row(logits, {}, allowed);
  std::vector<uint64_t> counts(1000);
  for (uint64_t n = 0; n < Scaled(2'000'000); ++n) ++counts[row.Draw({107, uint32_t(n), 0})];
  ExpectCounts(counts, Softmax(logits, 1, [&](uint32_t id) { return id * 37 % 11 < 3; }), 3);
}

// Pairs of draws whose keys differ by one, in each part of the key: the joint distribution is the product.
TEST(Draw, NeighbouringKeysAreIndependent) {
  constexpr uint32_t kTokens = 16;
  const std::vector<float> logits = ModelLogits(kTokens, 8);
  PreparedRow row(logits, {.temperature = 2});
  const std::vector<double> single = Softmax(logits, 2, All);
  std::vector<double> joint(kTokens * kTokens);
  for (uint32_t i = 0; i < joint.size(); ++i) joint[i] = single[i / kTokens] * single[i % kTokens];

  std::vector<uint64_t> counts[3] = {};
  for (std::vector<uint64_t>& part : counts) part.resize(joint.size());
  for (uint64_t n = 0; n < Scaled(1'000'000); ++n) {
    const auto position = uint32_t(2 * n);
    const uint32_t first = row.Draw({108, position, 4}) * kTokens;
    ++counts[0][first + row.Draw({108, position + 1, 4})];
    ++counts[1][first + row.Draw({108, position, 5})];
    ++counts[2][first + row.Draw({109, position, 4})];
  }
  for (const std::vector<uint64_t>& part : counts) ExpectCounts(part, joint, 10);
}

}  // namespace
}  // namespace sortition::kernels::cpu::draw_test
