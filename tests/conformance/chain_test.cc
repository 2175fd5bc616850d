// Rows with chains: the CPU kernel equals the reference in every bit, whatever the samplers and their order.
#include <gtest/gtest.h>

#include <array>

#include "kernels/cpu/sample_row.h"
#include "kernels/law/reference.h"
#include "tests/conformance/answer_printer.h"
#include "tests/conformance/random_row.h"
#include "tests/support/scale.h"

namespace sortition::kernels {
namespace {

cpu::Scratch chain_scratch;

void ExpectEqualChained(const RandomRow& row) {
  const RowOutput expected = law::SampleRowReference(row.request());
  for (const cpu::Target* target : cpu::RunnableTargets()) {
    RowOutput answer;
    cpu::SampleRow(*target, row.request(), &chain_scratch, &answer);
    ASSERT_EQ(answer, expected) << target->name << ": " << row.description();
  }
}

void ExpectEqualRows(uint64_t first_seed, uint64_t rows, uint32_t least, uint32_t spread) {
  for (uint64_t seed = 0; seed < rows; ++seed) {
    ExpectEqualChained(RandomRow(first_seed + seed, least + uint32_t(seed * 104729 % spread), RowOptions::kChained));
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(ChainKernel, EqualsReferenceOnSmallRows) { ExpectEqualRows(3'000'000, testing::Scaled(30'000), 1, 400); }

TEST(ChainKernel, EqualsReferenceOnMiddlingRows) { ExpectEqualRows(4'000'000, testing::Scaled(2'000), 400, 12'000); }

TEST(ChainKernel, EqualsReferenceOnLargeRows) { ExpectEqualRows(5'000'000, testing::Scaled(60), 32'000, 230'000); }

// The random chains meet every stage, and every stage meets something to drop.
TEST(ChainRows, CoverEveryStage) {
  std::array<int, kStageKinds> met = {};
  std::array<int, 2> outcomes = {};
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    const RandomRow row(seed, 300, RowOptions::kChained);
    const RowOutput answer = law::SampleRowReference(row.request());
    for (const Stage& stage : row.request().parameters->chain) ++met[size_t(stage.kind)];
    outcomes[0] += answer.sampler_state != 0 && answer.sampler_state != row.request().sampler_state;
    outcomes[1] += answer.kept > 1 && answer.kept < 100;
  }
  for (size_t kind = 0; kind < met.size(); ++kind) EXPECT_GE(met[kind], 50) << kind;
  for (size_t i = 0; i < outcomes.size(); ++i) EXPECT_GE(outcomes[i], 100) << i;
}

}  // namespace
}  // namespace sortition::kernels
