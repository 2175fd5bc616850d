// The CUDA kernels, compiled for the host, equal the reference in every bit of every answer, whatever order their
// threads run in.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/slice.h"
#include "kernels/law/chain.h"
#include "kernels/law/golden_rows.h"
#include "kernels/law/logprob.h"
#include "kernels/law/reference.h"
#include "tests/conformance/answer_printer.h"
#include "tests/conformance/random_row.h"
#include "tests/cuda/emulated_kernels.h"
#include "tests/support/scale.h"

namespace sortition::kernels::cuda {
namespace {

// A device's memory with the emulator for a device: 16-byte aligned, noise where nothing was written.
std::vector<uint64_t> Noise(uint64_t bytes) { return std::vector<uint64_t>(bytes / 8 + 2, 0xcdcdcdcdcdcdcdcd); }
std::byte* Aligned(std::vector<uint64_t>& memory) {
  auto* const bytes = reinterpret_cast<std::byte*>(memory.data());
  return bytes + (16 - reinterpret_cast<uintptr_t>(bytes) % 16) % 16;
}
uint64_t Address(std::vector<uint64_t>& memory) { return reinterpret_cast<uint64_t>(Aligned(memory)); }

class Batch {
 public:
  void AddRow(const RowRequest& request) {
    requests_.push_back(&request);
    ASSERT_TRUE(slice_.Add(request, ~uint64_t{0}));
  }

  // As a device of so many multiprocessors would.
  std::vector<RowOutput> Run(uint32_t multiprocessors, uint64_t seed) {
    Lay();
    Launch(multiprocessors, seed);
    return Answers();
  }

  void Lay() {
    upload_ = Noise(slice_.upload_bytes());
    work_ = Noise(slice_.work_bytes());
    download_ = Noise(slice_.download_bytes());
    std::memset(Aligned(work_), 0, slice_.states_bytes());
    slice_.WriteInputs(Aligned(upload_), Address(upload_), Address(work_), Address(download_));
    for (uint32_t row = 0; row < slice_.rows(); ++row) {
      size_t bytes = 0;
      std::byte* const to = slice_.LogitsOf(row, Aligned(upload_), &bytes);
      std::memcpy(to, requests_[row]->logits, bytes);
    }
  }

  void Launch(uint32_t multiprocessors, uint64_t seed) {
    const BatchView view = slice_.ViewOf(Address(upload_), Address(work_), Address(download_), multiprocessors);
    const uint32_t chunks = slice_.geometry(multiprocessors).chunks;
    testing::RunEmulated(testing::CudaKernel::kRead, view, slice_.rows(), chunks, seed);
    const uint32_t rows = slice_.rows();
    if (slice_.needed().weigh) testing::RunEmulated(testing::CudaKernel::kWeigh, view, rows, chunks, seed + 1);
    if (slice_.needed().chain) testing::RunEmulated(testing::CudaKernel::kChain, view, rows, 1, seed + 2);
  }

  std::vector<RowOutput> Answers() {
    std::vector<RowOutput> answers;
    for (uint32_t row = 0; row < slice_.rows(); ++row) answers.push_back(slice_.AnswerOf(row, Aligned(download_)));
    return answers;
  }

  const RawOutput& output(uint32_t row) { return reinterpret_cast<const RawOutput*>(Aligned(download_))[row]; }
  const TopToken* raw_top(uint32_t row) { return Input(row).raw_top; }
  const TopToken* processed_top(uint32_t row) { return Input(row).processed_top; }

 private:
  const RowInput& Input(uint32_t row) { return reinterpret_cast<const RowInput*>(Aligned(upload_))[row]; }

  Slice slice_;
  std::vector<const RowRequest*> requests_;
  std::vector<uint64_t> upload_;
  std::vector<uint64_t> work_;
  std::vector<uint64_t> download_;
};

// Compares rows with the reference, a few in a batch.
class Comparison {
 public:
  explicit Comparison(uint32_t multiprocessors) : multiprocessors_(multiprocessors) {}
  ~Comparison() { Flush(); }

  void Add(uint64_t seed, uint32_t vocabulary) { Add(std::make_unique<RandomRow>(seed, vocabulary)); }

  void Add(std::unique_ptr<RandomRow> row) {
    rows_.push_back(std::move(row));
    if (rows_.size() == 8) Flush();
  }

  // Rows for the third kernel.
  void AddChained(uint64_t seed, uint32_t vocabulary) {
    auto row = std::make_unique<RandomRow>(seed, vocabulary, seed % 4 == 0 ? RowOptions::kPlain : RowOptions::kChained);
    if (seed % 4 < 2) row->AskForMore();
    Add(std::move(row));
  }

  void Flush() {
    if (rows_.empty()) return;
    Batch batch;
    for (const auto& row : rows_) batch.AddRow(row->request());
    const std::vector<RowOutput> answers = batch.Run(multiprocessors_, seed_++);
    for (size_t i = 0; i < rows_.size(); ++i) {
      EXPECT_EQ(answers[i], law::SampleRowReference(rows_[i]->request()))
          << rows_[i]->description() << ", launch seed " << seed_ - 1;
    }
    rows_.clear();
  }

 private:
  const uint32_t multiprocessors_;
  uint64_t seed_ = 1;
  std::vector<std::unique_ptr<RandomRow>> rows_;
};

TEST(CudaKernel, EqualsReferenceOnSmallRows) {
  Comparison comparison(1);
  for (uint64_t seed = testing::Scaled(1500); seed > 0; --seed) {
    comparison.Add(seed, 1 + uint32_t(seed * 7919 % 400));
    if (HasFailure()) return;
  }
}

// Rows of several chunks.
TEST(CudaKernel, EqualsReferenceOnMiddlingRows) {
  Comparison comparison(16);
  for (uint64_t seed = testing::Scaled(300); seed > 0; --seed) {
    comparison.Add(1'000'000 + seed, 400 + uint32_t(seed * 104729 % 12'000));
    if (HasFailure()) return;
  }
}

TEST(CudaKernel, EqualsReferenceAtUsualVocabularies) {
  Comparison comparison(8);
  for (const uint32_t vocabulary : {63, 64, 65, 2047, 2048, 2049, 32768, 50257, 128256, 151936, 262144}) {
    for (uint64_t seed = 0; seed < testing::Scaled(vocabulary <= 3000 ? 8 : 4); ++seed) {
      comparison.Add(2'000'000 + seed, vocabulary);
    }
    comparison.Flush();
    if (HasFailure()) return;
  }
}

TEST(CudaKernel, EqualsReferenceAtLargestVocabulary) {
  Comparison comparison(4);
  for (uint64_t seed = 7; seed < 7 + testing::Scaled(4); ++seed) comparison.Add(seed, kMaxVocabulary);
}

// Rows with chains, and rows that ask for more than tokens, among others.
TEST(CudaChainKernel, EqualsReferenceOnSmallRows) {
  Comparison comparison(1);
  for (uint64_t seed = testing::Scaled(1200); seed > 0; --seed) {
    comparison.AddChained(6'000'000 + seed, 1 + uint32_t(seed * 7919 % 400));
    if (seed % 8 == 0) comparison.Add(seed, 100);
    if (HasFailure()) return;
  }
}

TEST(CudaChainKernel, EqualsReferenceOnMiddlingRows) {
  Comparison comparison(16);
  for (uint64_t seed = testing::Scaled(200); seed > 0; --seed) {
    comparison.AddChained(7'000'000 + seed, 400 + uint32_t(seed * 104729 % 12'000));
    if (HasFailure()) return;
  }
}

TEST(CudaChainKernel, EqualsReferenceAtUsualVocabularies) {
  Comparison comparison(8);
  for (const uint32_t vocabulary : {32768, 128256, 200064}) {
    for (uint64_t seed = 0; seed < testing::Scaled(8); ++seed) comparison.AddChained(8'000'000 + seed, vocabulary);
    comparison.Flush();
    if (HasFailure()) return;
  }
}

TEST(CudaKernel, EqualsReferenceOnGoldenRows) {
  for (const law::GoldenRow& row : law::GoldenRows()) {
    const std::vector<std::byte> tensor = law::TensorOf(row);
    const RowRequest request = law::RequestOf(row, tensor);
    Batch batch;
    batch.AddRow(request);
    EXPECT_EQ(batch.Run(4, 5)[0], law::SampleRowReference(request)) << row.name;
  }
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

// What blocks leave for one another is ready for the next launch over the same memory: batches are replayed.
TEST(CudaKernel, LaunchesCanBeRepeated) {
  std::vector<std::unique_ptr<RandomRow>> rows;
  Batch batch;
  for (uint64_t seed = 0; seed < testing::Scaled(24); ++seed) {
    const RowOptions options = seed % 2 == 0 ? RowOptions::kPlain : RowOptions::kChained;
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

// The logprobs that kernels leave in the device's memory are the host's.
TEST(CudaKernel, LogprobsEqualHosts) {
  uint64_t compared = 0;
  for (uint64_t seed = 0; seed < 60 + testing::Scaled(140); ++seed) {
    RandomRow row(4'000'000 + seed, 300, seed % 2 == 0 ? RowOptions::kPlain : RowOptions::kChained);
    if (seed % 4 == 3) row.AskForMore();
    const RowParameters& parameters = *row.request().parameters;
    Batch batch;
    batch.AddRow(row.request());
    const RowOutput answer = batch.Run(1, seed)[0];
    if (answer.error != RowError::kNone) continue;
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

// A row is read by as many blocks as the batch leaves idle: each chunk is whole tiles, and together they are the row.
TEST(CudaGeometry, BlocksCoverRowsAndUseEverySm) {
  constexpr uint32_t kMultiprocessors = 132;
  for (const uint32_t groups : {1u, 31u, 32u, 33u, 2004u, 2374u, 2560u, 16384u}) {
    const uint32_t tiles = (groups + kTileGroups - 1) / kTileGroups;
    for (const uint32_t rows : {1u, 2u, 7u, 32u, 131u, 256u, 512u, 4096u, 65535u}) {
      const Geometry geometry = GeometryOf(rows, groups, kMultiprocessors);
      EXPECT_EQ(geometry.chunk_groups % kTileGroups, 0u);
      EXPECT_LE(geometry.chunk_groups, kMaxChunkGroups);
      EXPECT_GE(geometry.chunks * geometry.chunk_groups, groups) << rows << " x " << groups;
      EXPECT_LT((geometry.chunks - 1) * geometry.chunk_groups, groups) << "the last block has nothing";
      EXPECT_LE(geometry.chunks, tiles);
      // As long as there are tiles enough, every multiprocessor has a block.
      EXPECT_GE(geometry.chunks * rows, std::min(tiles * rows, kMultiprocessors)) << rows << " x " << groups;
    }
  }
  EXPECT_EQ(GeometryOf(1, GroupsOf(128'256), kMultiprocessors).chunks, 63u) << "one row: a block a tile";
  EXPECT_EQ(GeometryOf(512, GroupsOf(128'256), kMultiprocessors).chunks, 2u);
  EXPECT_EQ(GeometryOf(2048, GroupsOf(65'536), kMultiprocessors).chunks, 1u);
}

}  // namespace
}  // namespace sortition::kernels::cuda
