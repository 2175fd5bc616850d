// The CUDA kernels, compiled for the host, equal the reference in every bit of every output, in any order of their
// threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/chunk.h"
#include "kernels/law/chain.h"
#include "kernels/law/golden/golden_rows.h"
#include "kernels/law/logprob.h"
#include "kernels/law/reference.h"
#include "tests/conformance/answer_printer.h"
#include "tests/conformance/comparison.h"
#include "tests/conformance/random_row.h"
#include "tests/cuda/emulated_batch.h"
#include "tests/support/scale.h"
#include "tests/verifier/published_row.h"

namespace sortition::kernels::cuda::kernel_test {
namespace {

using testing::Comparison;
using testing::EmulatedBackend;
using testing::RowKind;
using testing::UsualVocabularies;
using Batch = testing::EmulatedBatch;

TEST(CudaKernel, EqualsReferenceOnSmallRows) {
  EmulatedBackend backend(1);
  Comparison comparison(&backend);
  CompareSmallRows(&comparison, RowKind::kPlain, 1'500);
}

// Rows of several sections.
TEST(CudaKernel, EqualsReferenceOnMiddlingRows) {
  EmulatedBackend backend(16);
  Comparison comparison(&backend);
  CompareMiddlingRows(&comparison, RowKind::kPlain, 300);
}

TEST(CudaKernel, EqualsReferenceAtUsualVocabularies) {
  EmulatedBackend backend(8);
  Comparison comparison(&backend);
  for (const uint32_t vocabulary : UsualVocabularies()) {
    CompareAtVocabulary(&comparison, RowKind::kPlain, vocabulary, vocabulary <= 3000 ? 8 : 4);
  }
}

TEST(CudaKernel, EqualsReferenceAtLargestVocabulary) {
  EmulatedBackend backend(4);
  Comparison comparison(&backend);
  CompareAtVocabulary(&comparison, RowKind::kPlain, kMaxVocabulary, 4);
}

// Rows for the third kernel among others.
TEST(CudaChainKernel, EqualsReferenceOnSmallRows) {
  EmulatedBackend backend(1);
  Comparison comparison(&backend);
  CompareSmallRows(&comparison, RowKind::kMixed, 600);
  CompareSmallRows(&comparison, RowKind::kChained, 450);
  CompareSmallRows(&comparison, RowKind::kChainedTasks, 300);
}

TEST(CudaChainKernel, EqualsReferenceOnMiddlingRows) {
  EmulatedBackend backend(16);
  Comparison comparison(&backend);
  CompareMiddlingRows(&comparison, RowKind::kChained, 100);
  CompareMiddlingRows(&comparison, RowKind::kChainedTasks, 50);
  CompareMiddlingRows(&comparison, RowKind::kTasks, 50);
}

TEST(CudaChainKernel, EqualsReferenceAtUsualVocabularies) {
  EmulatedBackend backend(8);
  Comparison comparison(&backend);
  for (const uint32_t vocabulary : {32'768, 128'256, 200'064}) {
    CompareAtVocabulary(&comparison, RowKind::kChained, vocabulary, 4);
    CompareAtVocabulary(&comparison, RowKind::kChainedTasks, vocabulary, 2);
    CompareAtVocabulary(&comparison, RowKind::kTasks, vocabulary, 2);
  }
}

TEST(CudaChainKernel, EqualsReferenceIfDraftLeavesNothing) {
  EmulatedBackend backend(4);
  Comparison comparison(&backend);
  CompareWhereADraftLeavesNoWeight(&comparison, 40);
}

TEST(CudaKernel, EqualsReferenceOnGoldenRows) {
  EmulatedBackend backend(4);
  Comparison comparison(&backend);
  CompareGoldenRows(&comparison);
}

TEST(CudaKernel, AnswersPublishedRows) {
  EmulatedBackend backend(4);
  testing::ComparePublishedRows(&backend);
}

TEST(CudaKernel, EqualsReferenceOnSpecialRows) {
  EmulatedBackend backend(8);
  Comparison comparison(&backend);
  CompareWhereTopPKeepsMuch(&comparison, 4);
  CompareWhereAMaskHidesTheLargest(&comparison, 16);
  CompareWhereASampleMisleads(&comparison, 3);
  CompareAroundDistances(&comparison, 40);
}

TEST(CudaKernel, CountsKeptTokens) {
  for (uint64_t seed = 0; seed < testing::Scaled(100); ++seed) {
    const RandomRow row(5'000'000 + seed, 200);
    RowParameters parameters = *row.request().parameters;
    parameters.kept_count = true;
    RowRequest request = row.request();
    request.parameters = &parameters;
    Batch batch;
    batch.AddRow(request);
    EXPECT_EQ(batch.Run(1, seed)[0], law::SampleRowReference(request)) << row.description();
  }
}

// State that blocks leave for one another is ready for the next launch over the same memory: batches are replayed.
TEST(CudaKernel, LaunchesCanBeRepeated) {
  std::vector<std::unique_ptr<RandomRow>> rows;
  Batch batch;
  for (uint64_t seed = 0; seed < testing::Scaled(24); ++seed) {
    const OptionsKind options = seed % 2 == 0 ? OptionsKind::kPlain : OptionsKind::kChained;
    rows.push_back(std::make_unique<RandomRow>(3'000'000 + seed, 5000, options));
    if (seed % 4 == 3) rows.back()->AskForMore();
    batch.AddRow(rows.back()->request());
  }
  batch.Lay();
  for (uint64_t launch = 0; launch < 3; ++launch) {
    batch.Launch(9, launch);
    const std::vector<RowOutput> answers = batch.Answers();
    for (size_t i = 0; i < rows.size(); ++i) {
      ASSERT_EQ(answers[i], law::SampleRowReference(rows[i]->request())) << rows[i]->description();
    }
  }
}

TEST(CudaKernel, FiltersKeepTheLeast) {
  for (uint64_t seed = 0; seed < 40 + testing::Scaled(200); ++seed) {
    RandomRow row(5'000'000 + seed, seed % 8 == 0 ? 5000 : 1 + uint32_t(seed * 7919 % 300), OptionsKind::kChained);
    row.KeepAtLeast();
    Batch batch;
    batch.AddRow(row.request());
    EXPECT_EQ(batch.Run(1, seed)[0], law::SampleRowReference(row.request())) << row.description();
  }
}

// The logprobs that kernels leave in the device's memory are the host's.
TEST(CudaKernel, LogprobsEqualHosts) {
  uint64_t compared = 0;
  for (uint64_t seed = 0; seed < 60 + testing::Scaled(140); ++seed) {
    RandomRow row(4'000'000 + seed, 300, seed % 2 == 0 ? OptionsKind::kPlain : OptionsKind::kChained);
    if (seed % 4 == 3) row.AskForMore();
    const RowParameters& parameters = *row.request().parameters;
    Batch batch;
    batch.AddRow(row.request());
    const RowOutput answer = batch.Run(1, seed)[0];
    if (answer.error != RowFault::kNone) continue;
    const auto expect_equal = [&](const Distribution& distribution, double temperature,
                                  const DistributionOutput& output, const TopToken* top) {
      EXPECT_EQ(output.logprob, law::Logprob(distribution, distribution.chosen.bits, temperature));
      for (size_t i = 0; i < distribution.top.size(); ++i) {
        EXPECT_EQ(top[i].logprob, law::Logprob(distribution, distribution.top[i].bits, temperature));
        ++compared;
      }
    };
    if (parameters.raw_logprob) expect_equal(answer.raw, 1, batch.output(0).raw, batch.raw_top(0));
    if (parameters.processed_logprob) {
      expect_equal(answer.processed, law::ProcessedTemperature(parameters, answer), batch.output(0).processed,
                   batch.processed_top(0));
    }
  }
  EXPECT_GE(compared, 500u);
}

// A row is read by all blocks that the batch leaves idle. Each section is whole tiles, and together they are the row.
TEST(CudaGeometry, BlocksCoverRowsAndUseEverySm) {
  constexpr uint32_t kMultiprocessors = 132;
  for (const uint32_t groups : {1u, 31u, 32u, 33u, 2004u, 2374u, 2560u, 16384u}) {
    const uint32_t tiles = (groups + kTileGroups - 1) / kTileGroups;
    for (const uint32_t rows : {1u, 2u, 7u, 32u, 131u, 256u, 512u, 4096u, 65535u}) {
      const Geometry geometry = ChooseGeometry(rows, groups, kMultiprocessors);
      EXPECT_EQ(geometry.section_groups % kTileGroups, 0u);
      EXPECT_LE(geometry.section_groups, kMaxSectionGroups);
      EXPECT_GE(geometry.sections * geometry.section_groups, groups) << rows << " x " << groups;
      EXPECT_LT((geometry.sections - 1) * geometry.section_groups, groups) << "the last block has nothing";
      EXPECT_LE(geometry.sections, tiles);
      // Every multiprocessor has a block while there are enough tiles.
      EXPECT_GE(geometry.sections * rows, std::min(tiles * rows, kMultiprocessors)) << rows << " x " << groups;
    }
  }
  EXPECT_EQ(ChooseGeometry(1, GroupsOf(128'256), kMultiprocessors).sections, 63u) << "one row: a block a tile";
  EXPECT_EQ(ChooseGeometry(512, GroupsOf(128'256), kMultiprocessors).sections, 2u);
  EXPECT_EQ(ChooseGeometry(2048, GroupsOf(65'536), kMultiprocessors).sections, 1u);
}

}  // namespace
}  // namespace sortition::kernels::cuda::kernel_test
