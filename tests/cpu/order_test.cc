// Candidates by their order, against sorting them; on every target that this machine can run.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

#include "kernels/cpu/array.h"
#include "kernels/cpu/target.h"
#include "tests/support/scale.h"

namespace sortition::kernels::cpu::order_test {
namespace {

class OrderTest : public ::testing::TestWithParam<const Target*> {
 protected:
  const Kernels& kernels() const { return GetParam()->kernels; }

  // Returns candidates with few, many or all equal keys; each token once.
  std::vector<Candidate> Candidates(uint32_t count) {
    const uint32_t keys = uint32_t{1} << (random_() % 32);
    const uint32_t base = uint32_t(random_()) >> (random_() % 8);
    std::vector<Candidate> candidates;
    for (uint32_t i = 0; i < count; ++i) {
      candidates.push_back(Candidate::Of(std::max(1u, base + uint32_t(random_()) % keys), i * 7 + 3));
    }
    std::shuffle(candidates.begin(), candidates.end(), random_);
    return candidates;
  }

  // Copies the candidates into memory with room behind them, as kernels need.
  static Candidate* Laid(const std::vector<Candidate>& candidates, Array<Candidate>* memory) {
    return std::copy(candidates.begin(), candidates.end(), memory->Reserve(candidates.size())) - candidates.size();
  }

  std::mt19937_64 random_{42};
};

INSTANTIATE_TEST_SUITE_P(, OrderTest, ::testing::ValuesIn(RunnableTargets()),
                         [](const auto& info) { return std::string(info.param->name); });

TEST_P(OrderTest, FindsTheNth) {
  Array<Candidate> memory;
  for (uint64_t n = 0; n < sortition::testing::Scaled(3000); ++n) {
    std::vector<Candidate> candidates = Candidates(1 + uint32_t(random_() % (n % 10 == 0 ? 2000 : 80)));
    const auto count = uint32_t(candidates.size());
    Candidate* const laid = Laid(candidates, &memory);
    std::sort(candidates.begin(), candidates.end(), std::greater<>());
    const auto nth = uint32_t(1 + random_() % count);
    ASSERT_EQ(kernels().NthCandidate(laid, count, nth), candidates[nth - 1]) << count;
    ASSERT_EQ(kernels().MoveNotAfter(laid, count, candidates[nth - 1]), nth);
    std::sort(laid, laid + nth, std::greater<>());
    ASSERT_TRUE(std::equal(laid, laid + nth, candidates.begin()));
  }
}

TEST_P(OrderTest, FindsWhereWeightsReachThreshold) {
  Array<Candidate> memory;
  Array<uint64_t> weights;
  for (uint64_t n = 0; n < sortition::testing::Scaled(3000); ++n) {
    std::vector<Candidate> candidates = Candidates(1 + uint32_t(random_() % (n % 10 == 0 ? 2000 : 80)));
    const auto count = uint32_t(candidates.size());
    const Candidate* const laid = Laid(candidates, &memory);
    uint64_t* const weight = weights.Reserve(count);
    // A pure function of the rank, so that it can be had in order, too; some are 0.
    const auto weight_of = [](Candidate c) { return c.rank * 0x9e3779b97f4a7c15u >> (20 + c.token() % 44); };
    std::transform(laid, laid + count, weight, weight_of);
    std::sort(candidates.begin(), candidates.end(), std::greater<>());
    std::vector<uint64_t> sums = {0};
    for (const Candidate& c : candidates) sums.push_back(sums.back() + weight_of(c));
    if (sums.back() == 0) continue;
    // Any threshold, and sums of prefixes, met to the unit and missed by one.
    uint64_t threshold = 1 + random_() % sums.back();
    if (n % 2 == 0) threshold = std::clamp(sums[random_() % sums.size()] + n % 4 / 2, uint64_t{1}, sums.back());
    const auto reached = std::ranges::lower_bound(sums, threshold);
    const Candidate expected = candidates[size_t(reached - sums.begin()) - 1];
    ASSERT_EQ(kernels().LastReaching(laid, weight, count, law::MakeThreshold(threshold)), expected) << count;
  }
}

TEST_P(OrderTest, CopiesKeysBetweenBounds) {
  Array<Candidate> memory, between;
  for (uint64_t n = 0; n < sortition::testing::Scaled(3000); ++n) {
    const std::vector<Candidate> candidates = Candidates(uint32_t(random_() % 100));
    const auto count = uint32_t(candidates.size());
    const uint32_t keys[] = {count == 0 ? 1 : candidates[0].key(), uint32_t(1 + random_() % 0xfffffffe)};
    const auto [floor, ceiling] = std::minmax({keys[0], n % 3 == 0 ? ~0u : keys[1]});
    std::vector<Candidate> expected;
    for (const Candidate& c : candidates) {
      if (c.key() >= floor && c.key() < ceiling) expected.push_back(c);
    }
    Candidate* const copied = between.Reserve(count);
    ASSERT_EQ(kernels().CopyBetween(Laid(candidates, &memory), count, floor, ceiling, copied), expected.size());
    ASSERT_TRUE(std::equal(expected.begin(), expected.end(), copied));
  }
}

}  // namespace
}  // namespace sortition::kernels::cpu::order_test
