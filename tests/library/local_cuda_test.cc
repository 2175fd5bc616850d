// Local sequences with rows in a CUDA device's memory, over a driver whose kernels run in the emulator.
#include "client/local/local_cuda.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tests/cuda/fake_driver.h"

namespace sortition::client::local_cuda_test {
namespace {

using devices::cuda::Result;
using testing::FakeCudaDriver;
using ::testing::HasSubstr;

constexpr uint32_t kVocabulary = 600;
CUstream_st* const kStream = reinterpret_cast<CUstream_st*>(uintptr_t{77});

// Sequences of all kinds: stateless, with a history, with a sampler's state, with large results, with a phase.
std::vector<SequenceOptions> Kinds() {
  std::vector<SequenceOptions> kinds(6);
  for (size_t i = 0; i < kinds.size(); ++i) {
    kinds[i].request_id = std::string(1, static_cast<char>('a' + i));
    kinds[i].vocabulary_size = kVocabulary;
    kinds[i].seed = 40 + i;
    kinds[i].prompt = {1, 2, 3};
    kinds[i].parameters.set_temperature(0.9);
  }
  kinds[1].parameters.set_repetition_penalty(1.4);
  kinds[1].parameters.set_frequency_penalty(0.5);
  kinds[1].parameters.mutable_raw_logprobs()->set_top(3);
  kinds[2].parameters.mutable_mirostat()->set_version(2);
  kinds[3].parameters.set_typical_p(0.7);
  kinds[3].parameters.mutable_processed_logprobs();
  kinds[3].parameters.set_entropy(true);
  kinds[3].live_vocabulary_size = kVocabulary - 7;
  kinds[4].parameters.set_no_repeat_ngram_size(2);
  v1::Phase& phase = *kinds[5].parameters.add_phases();  // begins with the output, since its tag is in the prompt
  for (const uint32_t token : {2u, 3u}) phase.add_begin(token);
  phase.set_max_tokens(4);
  for (const uint32_t token : {9u, 4u}) phase.add_then(token);
  phase.mutable_parameters()->set_temperature(0.4f);
  phase.mutable_parameters()->set_top_k(3);
  phase.mutable_parameters()->set_frequency_penalty(0.5f);
  return kinds;
}

class LocalCudaTest : public ::testing::Test {
 protected:
  LocalCudaTest() {
    const devices::cuda::Api api = driver_.api();
    auto context =
        devices::cuda::Context::Create(api, devices::cuda::FindHardware(api)->at(0), FakeCudaDriver::Images());
    if (!context.ok()) ADD_FAILURE() << context.status();
    auto cuda = LocalCuda::CreateOn(*std::move(context));
    if (!cuda.ok()) ADD_FAILURE() << cuda.status();
    cuda_ = *std::move(cuda);
    for (const SequenceOptions& kind : Kinds()) {
      on_device_.push_back(*LocalSequence::Open(kind));
      on_host_.push_back(*LocalSequence::Open(kind));
      sequences_.push_back(on_device_.back().get());
    }
    logits_ = static_cast<std::byte*>(driver_.Allocate(kStride * sequences_.size()));
  }

  // A row for each sequence, `offset` bytes from a multiple of 16.
  std::vector<Row> Rows(uint64_t seed, size_t offset) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal(0, 3);
    std::vector<Row> rows(sequences_.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      std::byte* const to = logits_ + kStride * i + offset;
      for (uint32_t token = 0; token < kVocabulary; ++token) {
        const float logit = normal(random);
        std::memcpy(to + sizeof(logit) * token, &logit, sizeof(logit));
      }
      rows[i].logits = to;
      rows[i].draw_salt = static_cast<uint32_t>(i);
      if (i == 0) rows[i].allowed_bits = mask_.data();
    }
    return rows;
  }

  static constexpr size_t kStride = 4096;
  FakeCudaDriver driver_;
  std::unique_ptr<LocalCuda> cuda_;
  std::vector<std::unique_ptr<LocalSequence>> on_device_;
  std::vector<std::unique_ptr<LocalSequence>> on_host_;
  std::vector<LocalSequence*> sequences_;
  std::byte* logits_ = nullptr;
  const std::vector<uint32_t> mask_ = std::vector<uint32_t>((kVocabulary + 31) / 32, 0x55aa55aau);
};

TEST_F(LocalCudaTest, TokensEqualHost) {
  EXPECT_FALSE(driver_.is_awaited(kStream));
  for (uint64_t step = 0; step < 12; ++step) {
    const std::vector<Row> rows = Rows(step, step % 2 == 0 ? 0 : 4);
    const auto results = cuda_->Step(v1::DTYPE_F32, sequences_, rows, kStream);
    ASSERT_TRUE(results.ok()) << results.status();
    for (size_t i = 0; i < rows.size(); ++i) {
      const RowResult expected = on_host_[i]->Step(v1::DTYPE_F32, rows[i]);
      ASSERT_TRUE(std::holds_alternative<v1::DrawResult>(expected)) << std::get<RowError>(expected).message;
      ASSERT_TRUE(std::holds_alternative<v1::DrawResult>((*results)[i]));
      EXPECT_EQ(std::get<v1::DrawResult>((*results)[i]).SerializeAsString(),
                std::get<v1::DrawResult>(expected).SerializeAsString());
    }
  }
  EXPECT_TRUE(driver_.is_awaited(kStream));
}

// Rows of several adjacent positions, for sequences of all kinds. Those of mirostat run one after the other.
class LocalCudaTasksTest : public LocalCudaTest {
 protected:
  std::vector<Row> Rows(uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal(0, 3);
    drafts_.assign(sequences_.size(), {});
    std::vector<Row> rows(sequences_.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      float* const to = tasks_ + kRow * 4 * i;
      for (uint32_t k = 0; k < 4 * kRow; ++k) to[k] = normal(random);
      rows[i].logits = to;
      tokens_[i].clear();
      for (uint32_t k = 0; k < 3; ++k) {
        tokens_[i].push_back(
            static_cast<uint32_t>(std::max_element(to + k * kRow, to + k * kRow + 500) - (to + k * kRow)));
      }
      if ((seed + i) % 3 == 0) continue;  // a draw
      if ((seed + i) % 3 == 1) {
        rows[i].scored = tokens_[i];
        rows[i].score_race = true;
        continue;
      }
      drafts_[i].mode = seed % 2 == 0 ? v1::VERIFY_MODE_REJECTION : v1::VERIFY_MODE_COUPLED;
      drafts_[i].tokens = tokens_[i];
      drafts_[i].return_probabilities = seed % 4 == 1;
      if (seed % 4 == 2) drafts_[i].probabilities = even_.data();
      rows[i].drafts = &drafts_[i];
    }
    return rows;
  }

  static constexpr size_t kRow = kVocabulary;
  float* const tasks_ = static_cast<float*>(driver_.Allocate(sizeof(float) * kRow * 4 * 8));
  std::vector<Drafts> drafts_;
  std::vector<uint32_t> tokens_[8];
  const std::vector<float> even_ = std::vector<float>(3 * kRow, 1.0f / (kVocabulary - 4));
};

std::string Said(const RowResult& result) {
  if (const auto* draw = std::get_if<v1::DrawResult>(&result)) return "draw " + draw->SerializeAsString();
  if (const auto* score = std::get_if<v1::ScoreResult>(&result)) return "score " + score->SerializeAsString();
  if (const auto* verify = std::get_if<v1::VerifyResult>(&result)) return "verify " + verify->SerializeAsString();
  return Describe(std::get<RowError>(result));
}

TEST_F(LocalCudaTasksTest, DraftsAndScoresEqualHost) {
  for (uint64_t step = 0; step < 8; ++step) {
    const std::vector<Row> rows = Rows(step);
    const auto results = cuda_->Step(v1::DTYPE_F32, sequences_, rows, kStream);
    ASSERT_TRUE(results.ok()) << results.status();
    for (uint32_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(Said((*results)[i]), Said(on_host_[i]->Step(v1::DTYPE_F32, rows[i], {.row = i}))) << step << ", " << i;
      EXPECT_FALSE(std::holds_alternative<RowError>((*results)[i])) << step << ", " << i;
      EXPECT_EQ(on_device_[i]->position(), on_host_[i]->position());
    }
  }
}

// Mirostat's scores need a batch for each token. If the last batch fails, the other rows' results of the first one are
// dropped.
TEST_F(LocalCudaTasksTest, LaterBatchFailureKeepsAllSequences) {
  const std::vector<Row> rows = Rows(2);
  ASSERT_FALSE(rows[2].scored.empty());
  const uint64_t before = driver_.launches();
  ASSERT_TRUE(cuda_->Step(v1::DTYPE_F32, sequences_, rows, kStream).ok());
  const auto positions = [&] {
    std::vector<uint32_t> all;
    for (const LocalSequence* sequence : sequences_) all.push_back(sequence->position());
    return all;
  };
  const std::vector<uint32_t> reached = positions();
  driver_.Fail("LaunchKernel", Result::kOutOfMemory, static_cast<int>(driver_.launches() - before));
  EXPECT_FALSE(cuda_->Step(v1::DTYPE_F32, sequences_, rows, kStream).ok());
  EXPECT_EQ(positions(), reached);
  EXPECT_TRUE(cuda_->Step(v1::DTYPE_F32, sequences_, rows, kStream).ok());
  EXPECT_NE(positions(), reached);
}

// The kernels lack it: the row fails alone, by the name of the parameter.
TEST_F(LocalCudaTest, TemperedLogprobsAreRefusedByName) {
  for (const bool tempered : {true, false}) {
    SequenceOptions options = Kinds()[1];
    if (tempered) options.parameters.mutable_tempered_logprobs();
    if (!tempered) options.parameters.set_kept_log_mass(true);
    const auto sequence = *LocalSequence::Open(options);
    std::vector<Row> rows = Rows(1, 0);
    std::vector<LocalSequence*> sequences = sequences_;
    sequences[1] = sequence.get();
    const auto results = cuda_->Step(v1::DTYPE_F32, sequences, rows, kStream);
    ASSERT_TRUE(results.ok()) << results.status();
    const RowError& error = std::get<RowError>((*results)[1]);
    EXPECT_EQ(error.reason, v1::NOT_IMPLEMENTED);
    EXPECT_EQ(error.field, tempered ? "parameters.tempered_logprobs" : "parameters.kept_log_mass");
    EXPECT_EQ(sequence->position(), 3u);
    EXPECT_TRUE(std::holds_alternative<v1::DrawResult>((*results)[0]));
    EXPECT_TRUE(std::holds_alternative<v1::DrawResult>(sequence->Step(v1::DTYPE_F32, rows[1])));
  }
}

TEST_F(LocalCudaTest, BlocksAndRoundsAreRefusedByName) {
  const std::vector<uint32_t> tokens = {4, 5};
  const std::vector<int32_t> siblings = {-1, -1};
  std::vector<v1::SparseProbabilities> sparse(2);
  for (const bool is_block : {true, false}) {
    Drafts drafts;
    drafts.mode = is_block ? v1::VERIFY_MODE_BLOCK : v1::VERIFY_MODE_REJECTION;
    drafts.tokens = tokens;
    if (!is_block) drafts.parents = siblings;
    drafts.sparse_probabilities = sparse;
    std::vector<Row> rows = Rows(1, 0);
    rows[1].drafts = &drafts;
    const auto results = cuda_->Step(v1::DTYPE_F32, sequences_, rows, kStream);
    ASSERT_TRUE(results.ok()) << results.status();
    const RowError& error = std::get<RowError>((*results)[1]);
    EXPECT_EQ(error.reason, v1::NOT_IMPLEMENTED);
    EXPECT_EQ(error.field, is_block ? "rows[1].drafts.mode" : "rows[1].drafts.parents");
    EXPECT_TRUE(std::holds_alternative<v1::DrawResult>((*results)[0]));
  }
}

TEST_F(LocalCudaTest, FailedRowKeepsItsSequence) {
  std::vector<Row> rows = Rows(1, 0);
  rows[1].draw_salt = 70000;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(logits_ + kStride * 4, &nan, sizeof(nan));
  const auto results = cuda_->Step(v1::DTYPE_F32, sequences_, rows, nullptr);
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_EQ(std::get<RowError>((*results)[1]).reason, v1::OUT_OF_RANGE);
  EXPECT_EQ(std::get<RowError>((*results)[4]).reason, v1::LOGIT_NAN);
  for (const size_t i : {0u, 2u, 3u}) EXPECT_EQ(sequences_[i]->position(), 4u);
  for (const size_t i : {1u, 4u}) EXPECT_EQ(sequences_[i]->position(), 3u);
}

TEST_F(LocalCudaTest, FailedBatchKeepsSequences) {
  const std::vector<Row> rows = Rows(2, 0);
  const auto expect_failure = [&](std::span<LocalSequence* const> sequences, std::span<const Row> given,
                                  absl::StatusCode code, const char* text) {
    const auto results = cuda_->Step(v1::DTYPE_F32, sequences, given, kStream);
    EXPECT_EQ(results.status().code(), code);
    EXPECT_THAT(results.status().message(), HasSubstr(text));
    for (const LocalSequence* sequence : sequences_) EXPECT_EQ(sequence->position(), 3u);
  };
  std::vector<LocalSequence*> doubled = sequences_;
  doubled[3] = doubled[0];
  expect_failure(doubled, rows, absl::StatusCode::kInvalidArgument, "twice");
  std::vector<Row> elsewhere = rows;
  elsewhere[2].logits = mask_.data();
  expect_failure(sequences_, elsewhere, absl::StatusCode::kInvalidArgument, "rows[2].logits");
  driver_.SetCapturing(true);
  expect_failure(sequences_, rows, absl::StatusCode::kFailedPrecondition, "captures");
  driver_.SetCapturing(false);
  driver_.Fail("LaunchKernel", Result::kOutOfMemory);
  expect_failure(std::span(sequences_).first(1), std::span(rows).first(1), absl::StatusCode::kResourceExhausted, "");
  EXPECT_TRUE(cuda_->Step(v1::DTYPE_F32, sequences_, rows, kStream).ok());
  driver_.FailKernel(Result::kIllegalAddress);
  const auto lost = cuda_->Step(v1::DTYPE_F32, sequences_, rows, kStream);
  EXPECT_EQ(lost.status().code(), absl::StatusCode::kUnavailable);
  for (const LocalSequence* sequence : sequences_) EXPECT_EQ(sequence->position(), 4u);
}

}  // namespace
}  // namespace sortition::client::local_cuda_test
