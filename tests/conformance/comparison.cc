// Batches of rows, and random ones.
#include "tests/conformance/comparison.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "kernels/law/golden/golden_rows.h"
#include "kernels/law/reference.h"
#include "tests/conformance/answer_printer.h"
#include "tests/support/scale.h"

namespace sortition::testing {
namespace {

using kernels::OptionsKind;
using kernels::RandomRow;
using kernels::RowOutput;

constexpr size_t kBatchBytes = 2u << 20;

// Adds rows of seeds after `first_seed` and compares all of them.
void CompareRandom(Comparison* comparison, RowKind kind, uint64_t first_seed, uint64_t rows,
                   const std::function<uint32_t(uint64_t)>& vocabulary) {
  const uint64_t before = comparison->compared();
  const uint64_t number = Scaled(rows);
  for (uint64_t seed = number; seed > 0; --seed) {
    comparison->Add(MakeRow(kind, first_seed + seed, vocabulary(seed)));
    if (::testing::Test::HasFailure()) return;
  }
  comparison->Flush();
  EXPECT_EQ(comparison->compared() - before, number);
}

uint64_t FirstSeed(RowKind kind) { return 100'000'000 * uint64_t(kind); }

}  // namespace

Comparison::Comparison(std::vector<Backend*> backends) : backends_(std::move(backends)), batch_rows_(1) {
  EXPECT_FALSE(backends_.empty());
  for (const Backend* backend : backends_) batch_rows_ = std::max(batch_rows_, backend->batch_rows());
}

Comparison::~Comparison() {
  Flush();
  if (::testing::Test::HasFailure()) return;
  EXPECT_EQ(compared_, added_);
  EXPECT_GT(compared_, 0u);
}

void Comparison::Add(std::unique_ptr<RandomRow> row) {
  const std::shared_ptr<RandomRow> owner = std::move(row);
  Add({owner->request(), owner->tensor(), owner->description(), owner});
}

void Comparison::Add(ComparedRow row) {
  for (const Backend* backend : backends_) {
    EXPECT_LE(row.request.live_vocabulary, backend->max_vocabulary()) << backend->name();
    EXPECT_EQ(kernels::FeaturesOf(row.request) & ~backend->features(), 0u) << backend->name();
  }
  ++added_;
  waiting_bytes_ += row.tensor.size();
  waiting_.push_back(std::move(row));
  if (waiting_.size() >= batch_rows_ || waiting_bytes_ > kBatchBytes) Flush();
}

void Comparison::Flush() {
  const std::vector<ComparedRow> rows = std::exchange(waiting_, {});
  waiting_bytes_ = 0;
  if (rows.empty()) return;
  std::vector<RowOutput> expected;
  for (const ComparedRow& row : rows) expected.push_back(law::SampleRowReference(row.request));
  for (Backend* const backend : backends_) {
    const std::vector<RowOutput> outputs = backend->Sample(rows);
    ASSERT_EQ(outputs.size(), rows.size()) << backend->name();
    for (size_t i = 0; i < rows.size(); ++i) {
      ASSERT_EQ(outputs[i], expected[i]) << backend->name() << ": " << rows[i].description;
    }
  }
  compared_ += rows.size();
}

std::unique_ptr<RandomRow> MakeRow(RowKind kind, uint64_t seed, uint32_t vocabulary) {
  const bool is_mixed = kind == RowKind::kMixed || kind == RowKind::kRecord;
  const bool is_chained = kind == RowKind::kChained || kind == RowKind::kChainedTasks || (is_mixed && seed % 2 == 0);
  auto row = std::make_unique<RandomRow>(seed, vocabulary, is_chained ? OptionsKind::kChained : OptionsKind::kPlain);
  if (kind == RowKind::kTasks || kind == RowKind::kChainedTasks || (is_mixed && seed % 3 == 0)) row->AskForMore();
  if (kind != RowKind::kRecord) return row;
  row->AskForRecord();
  row->AskForBlock();
  if (seed % 4 < 2) row->KeepAtLeast();
  row->AskForRounds();
  return row;
}

void CompareSmallRows(Comparison* comparison, RowKind kind, uint64_t rows) {
  CompareRandom(comparison, kind, FirstSeed(kind), rows, [](uint64_t seed) { return 1 + uint32_t(seed * 7919 % 400); });
}

void CompareMiddlingRows(Comparison* comparison, RowKind kind, uint64_t rows) {
  CompareRandom(comparison, kind, FirstSeed(kind) + 1'000'000, rows,
                [](uint64_t seed) { return 400 + uint32_t(seed * 104729 % 12'000); });
}

void CompareAtVocabulary(Comparison* comparison, RowKind kind, uint32_t vocabulary, uint64_t rows) {
  CompareRandom(comparison, kind, FirstSeed(kind) + 2'000'000, rows, [&](uint64_t) { return vocabulary; });
}

std::span<const uint32_t> UsualVocabularies() {
  static constexpr uint32_t kVocabularies[] = {1,    2,    63,   64,    65,    127,    128,    1000,
                                               2047, 2048, 2049, 32768, 50257, 128256, 151936, 262144};
  return kVocabularies;
}

void CompareGoldenRows(Comparison* comparison) {
  const uint64_t before = comparison->compared();
  for (const law::GoldenRow& row : law::GoldenRows()) {
    auto tensor = std::make_shared<const std::vector<std::byte>>(law::MakeTensor(row));
    comparison->Add({law::MakeRequest(row, *tensor), *tensor, row.name, tensor});
    // One a batch, as a device's self-test runs them.
    comparison->Flush();
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_EQ(comparison->compared() - before, law::GoldenRows().size());
}

}  // namespace sortition::testing
