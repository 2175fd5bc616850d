// The CPU kernel equals the reference in every bit of every output, on every target that this machine can run.
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "kernels/cpu/sample_row.h"
#include "tests/conformance/comparison.h"
#include "tests/support/scale.h"

namespace sortition::testing::cpu_kernel_test {
namespace {

// A target. Rows share the memory of one thread, as a device's rows do: nothing that a row leaves behind may reach the
// next row.
class CpuBackend : public Backend {
 public:
  explicit CpuBackend(const kernels::cpu::Target* target) : target_(*target) {}
  std::string name() const override { return std::string(target_.name); }
  std::vector<kernels::RowOutput> Sample(std::span<const ComparedRow> rows) override {
    std::vector<kernels::RowOutput> outputs(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      kernels::cpu::SampleRow(target_, rows[i].request, &scratch_, &outputs[i]);
    }
    return outputs;
  }

 private:
  const kernels::cpu::Target& target_;
  kernels::cpu::Scratch scratch_;
};

class CpuKernel : public ::testing::Test {
 protected:
  CpuKernel() {
    for (const kernels::cpu::Target* target : kernels::cpu::RunnableTargets()) {
      backends_.push_back(std::make_unique<CpuBackend>(target));
    }
  }
  std::vector<Backend*> backends() const {
    std::vector<Backend*> backends;
    for (const auto& backend : backends_) backends.push_back(backend.get());
    return backends;
  }

 private:
  std::vector<std::unique_ptr<CpuBackend>> backends_;
};

TEST_F(CpuKernel, EqualsReferenceOnSmallRows) {
  Comparison comparison(backends());
  CompareSmallRows(&comparison, RowKind::kPlain, 100'000);
}

TEST_F(CpuKernel, EqualsReferenceOnMiddlingRows) {
  Comparison comparison(backends());
  CompareMiddlingRows(&comparison, RowKind::kPlain, 8'000);
}

TEST_F(CpuKernel, EqualsReferenceInEveryTask) {
  Comparison comparison(backends());
  CompareSmallRows(&comparison, RowKind::kTasks, 12'000);
  CompareMiddlingRows(&comparison, RowKind::kTasks, 1'200);
}

TEST_F(CpuKernel, EqualsReferenceWithChains) {
  Comparison comparison(backends());
  CompareSmallRows(&comparison, RowKind::kChained, 30'000);
  CompareMiddlingRows(&comparison, RowKind::kChained, 2'000);
  CompareSmallRows(&comparison, RowKind::kChainedTasks, 2'000);
}

TEST_F(CpuKernel, EqualsReferenceWithChainsOnLargeRows) {
  Comparison comparison(backends());
  for (const uint32_t vocabulary : {32'768, 128'256, 262'144}) {
    CompareAtVocabulary(&comparison, RowKind::kChained, vocabulary, 20);
  }
}

TEST_F(CpuKernel, EqualsReferenceAtUsualVocabularies) {
  Comparison comparison(backends());
  for (const uint32_t vocabulary : UsualVocabularies()) {
    CompareAtVocabulary(&comparison, RowKind::kPlain, vocabulary, vocabulary <= 3000 ? 2'000 : 15'000'000 / vocabulary);
  }
}

TEST_F(CpuKernel, EqualsReferenceAtLargestVocabulary) {
  Comparison comparison(backends());
  CompareAtVocabulary(&comparison, RowKind::kPlain, kernels::kMaxVocabulary, 1);
}

TEST_F(CpuKernel, EqualsReferenceInTheRecord) {
  Comparison comparison(backends());
  CompareSmallRows(&comparison, RowKind::kRecord, 30'000);
  CompareMiddlingRows(&comparison, RowKind::kRecord, 3'000);
  for (const uint32_t vocabulary : UsualVocabularies()) {
    CompareAtVocabulary(&comparison, RowKind::kRecord, vocabulary, vocabulary <= 3000 ? 300 : 3'000'000 / vocabulary);
  }
}

// Places any token, also one far behind, in rows of many groups.
TEST_F(CpuKernel, EqualsReferenceInPlacesOfTheRace) {
  Comparison comparison(backends());
  const uint64_t rows = Scaled(800);
  for (uint64_t seed = 1; seed <= rows; ++seed) {
    const auto options = seed % 4 == 0 ? kernels::OptionsKind::kChained : kernels::OptionsKind::kPlain;
    const uint32_t vocabulary = 1 + uint32_t(seed * 104729 % (seed % 8 == 0 ? 130'000 : 9'000));
    const auto row = std::make_shared<kernels::RandomRow>(600'000'000 + seed, vocabulary, options);
    kernels::RowRequest request = row->request();
    const auto parameters = std::make_shared<kernels::RowParameters>(*request.parameters);
    if (!parameters->chain.empty() && parameters->chain.back().kind == kernels::StageKind::kAdaptiveP) continue;
    if (seed % 2 == 0) parameters->top_k = parameters->top_p = 0;
    request.parameters = parameters.get();
    request.task = kernels::RowTask::kScore;
    request.given = uint32_t(seed * 7919 % request.live_vocabulary);
    request.wants_race_place = true;
    comparison.Add({request, row->tensor(), row->description(),
                    std::make_shared<decltype(std::pair(row, parameters))>(row, parameters)});
  }
}

// Top-n-sigma's sums come from the first pass where nothing changes the row and no logit is masked or too small.
TEST_F(CpuKernel, EqualsReferenceIfSigmaFiltersFirst) {
  Comparison comparison(backends());
  const uint64_t rows = Scaled(6'000);
  for (uint64_t seed = 1; seed <= rows; ++seed) {
    auto row = std::make_unique<kernels::RandomRow>(650'000'000 + seed, 1 + uint32_t(seed * 7919 % 9'000));
    row->FilterBySigmaFirst();
    comparison.Add(std::move(row));
  }
}

TEST_F(CpuKernel, EqualsReferenceOnGoldenRows) {
  Comparison comparison(backends());
  CompareGoldenRows(&comparison);
}

TEST_F(CpuKernel, EqualsReferenceIfTopPKeepsMany) {
  Comparison comparison(backends());
  CompareWhereTopPKeepsMuch(&comparison, 120);
}

TEST_F(CpuKernel, EqualsReferenceIfMaskHidesLargest) {
  Comparison comparison(backends());
  CompareWhereAMaskHidesTheLargest(&comparison, 1'000);
}

TEST_F(CpuKernel, EqualsReferenceIfSampleMisleads) {
  Comparison comparison(backends());
  CompareWhereASampleMisleads(&comparison, 24);
}

TEST_F(CpuKernel, EqualsReferenceAroundDistances) {
  Comparison comparison(backends());
  CompareAroundDistances(&comparison, 1'999);
}

TEST_F(CpuKernel, EqualsReferenceAtExactThreshold) {
  Comparison comparison(backends());
  CompareWhereAThresholdIsMetExactly(&comparison);
}

TEST_F(CpuKernel, EqualsReferenceIfDraftLeavesNothing) {
  Comparison comparison(backends());
  CompareWhereADraftLeavesNoWeight(&comparison, 100);
}

}  // namespace
}  // namespace sortition::testing::cpu_kernel_test
