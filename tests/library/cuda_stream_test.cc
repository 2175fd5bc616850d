// Local sequences that a device advances on a stream, awaited three steps late, like sequences stepped one by one.
#include "client/local/cuda_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "tests/cuda/fake_driver.h"

namespace sortition::client::cuda_stream_test {
namespace {

using testing::FakeCudaDriver;
using ::testing::HasSubstr;

constexpr uint32_t kVocabulary = 600;
constexpr uint32_t kRows = 6;
constexpr size_t kLate = 3;
CUstream_st* const kOwnStream = reinterpret_cast<CUstream_st*>(uintptr_t{77});

SequenceOptions MakeOptions(uint32_t row, uint32_t life) {
  SequenceOptions options;
  options.request_id = "row-" + std::to_string(row);
  options.vocabulary_size = kVocabulary;
  options.seed = 40 + row + 100 * life;
  options.prompt = {1, 2, 3, 2};
  v1::SamplingParameters& p = options.parameters;
  p.set_temperature(0.8f);
  if (row != 0) p.set_repetition_penalty(1.2f);
  if (row == 1 || row == 4) p.set_frequency_penalty(0.3f);
  if (row == 2) p.set_presence_penalty(0.7f);
  if (row == 1) p.mutable_raw_logprobs()->set_top(3);
  if (row == 2) p.mutable_mirostat()->set_version(2);
  if (row == 3) p.set_entropy(true);
  if (row == 4) p.mutable_processed_logprobs()->set_top(5);
  if (row == 5) p.set_top_k(20);
  v1::LogitBias& bias = *p.add_logit_bias();
  bias.set_token(2);
  bias.set_bias(0.5f);
  p.add_banned_token_ids(7);
  return options;
}

// Writes the logits that follow a token.
void WriteLogits(uint32_t row, int32_t token, float* logits) {
  uint32_t state = 0x9e3779b9u * (row + 1) ^ (uint32_t(token) % 11 * 0x85ebca6bu);
  for (uint32_t i = 0; i < kVocabulary; ++i) {
    state = state * 1664525u + 1013904223u;
    logits[i] = float(state >> 20) / 1024.0f + (i % 60 < 2 ? 3.0f : 0.0f);
  }
}

class CudaStreamTest : public ::testing::Test {
 protected:
  CudaStreamTest() {
    const devices::cuda::Api api = driver_.api();
    auto context =
        devices::cuda::Context::Create(api, devices::cuda::FindHardware(api)->at(0), FakeCudaDriver::Images());
    if (!context.ok()) ADD_FAILURE() << context.status();
    auto stream =
        CudaStream::CreateOn(*std::move(context), {.rows = kRows, .vocabulary = kVocabulary, .edits = 100, .top = 5});
    if (!stream.ok()) ADD_FAILURE() << stream.status();
    stream_ = *std::move(stream);
    logits_ = static_cast<std::byte*>(driver_.Allocate(kRowBytes * kRows));
    std::memset(logits_, 0, kRowBytes * kRows);
  }

  // Puts a sequence into the row, and keeps one with the same options for comparison.
  void Put(uint32_t row, uint32_t life) {
    const SequenceOptions options = MakeOptions(row, life);
    on_stream_[row] = *LocalSequence::Open(options);
    on_host_[row] = *LocalSequence::Open(options);
    ASSERT_TRUE(stream_->Put(row, on_stream_[row]).ok());
    host_tokens_[row] = 2;
    driver_.Enqueue(kOwnStream, [this, row] { last_[row] = 2; });
  }

  StreamStep MakeStep(std::span<const uint32_t> rows) const { return {logits_, kRowBytes, v1::DTYPE_F32, rows}; }

  // Queues a forward pass for these rows, and the step behind it. The model fails for `nan_row`.
  CudaStream::Ticket Queue(const std::vector<uint32_t>& rows, uint32_t nan_row = kRows) {
    driver_.Enqueue(kOwnStream, [this, rows, nan_row] {
      for (uint32_t i = 0; i < rows.size(); ++i) {
        if (rows[i] == CudaStream::kNoRow) std::memset(LogitsOf(i), 0xff, kRowBytes);
        if (rows[i] == CudaStream::kNoRow) continue;
        WriteLogits(rows[i], last_[rows[i]], LogitsOf(i));
        if (rows[i] == nan_row) std::memset(LogitsOf(i) + 9, 0xff, sizeof(float));
      }
    });
    const auto queued = stream_->Step(MakeStep(rows), kOwnStream);
    EXPECT_TRUE(queued.ok()) << queued.status();
    if (!queued.ok()) return 0;
    // The next forward pass takes the tokens where they are.
    driver_.Enqueue(kOwnStream, [this, rows, tokens = queued->tokens] {
      for (uint32_t i = 0; i < rows.size(); ++i) {
        if (rows[i] != CudaStream::kNoRow) last_[rows[i]] = tokens[i];
      }
    });
    return queued->ticket;
  }

  // Returns the result of the plain sequence's step.
  RowResult StepOnHost(uint32_t row) {
    std::vector<float> logits(kVocabulary);
    WriteLogits(row, host_tokens_[row], logits.data());
    const RowResult result = on_host_[row]->Step(v1::DTYPE_F32, {.logits = logits.data()});
    host_tokens_[row] = static_cast<int32_t>(std::get<v1::DrawResult>(result).token());
    return result;
  }

  float* LogitsOf(uint32_t index) { return reinterpret_cast<float*>(logits_ + kRowBytes * index); }

  static constexpr size_t kRowBytes = 4096;
  FakeCudaDriver driver_;
  std::unique_ptr<CudaStream> stream_;
  std::byte* logits_ = nullptr;
  std::shared_ptr<LocalSequence> on_stream_[kRows];
  std::shared_ptr<LocalSequence> on_host_[kRows];
  int32_t last_[kRows] = {};  // tokens, by the device
  int32_t host_tokens_[kRows] = {};
};

std::string TextOf(const RowResult& result) {
  const auto* const draw = std::get_if<v1::DrawResult>(&result);
  return draw != nullptr ? draw->SerializeAsString() : "error: " + std::get<RowError>(result).message;
}

// The rows of a step: in another order every four steps, some of them idle, some with logits that no row draws from.
std::vector<uint32_t> RowsOf(uint32_t step) {
  std::vector<uint32_t> rows;
  for (uint32_t i = 0; i < kRows; ++i) {
    const uint32_t row = (i + step / 4) % kRows;
    if (step < 4 || (step + row) % 5 != 0) rows.push_back(row);
  }
  if (step % 3 == 2 && rows.size() < kRows) rows.insert(rows.begin() + 1, CudaStream::kNoRow);
  return rows;
}

TEST_F(CudaStreamTest, LateResultsEqualLocalSequences) {
  const uint64_t waits = driver_.calls("StreamSynchronize");
  driver_.Defer();
  for (uint32_t row = 0; row < kRows; ++row) Put(row, 0);
  struct Late {
    CudaStream::Ticket ticket;
    uint32_t step;
    std::vector<uint32_t> rows;
  };
  std::deque<Late> queued;
  uint64_t awaited = 0;
  const auto await = [&] {
    const Late late = std::move(queued.front());
    queued.pop_front();
    const auto is_done = stream_->IsDone(late.ticket);
    ASSERT_TRUE(is_done.ok()) << is_done.status();
    EXPECT_FALSE(*is_done);
    const auto results = stream_->Await(late.ticket);
    ASSERT_TRUE(results.ok()) << results.status();
    EXPECT_TRUE(*stream_->IsDone(late.ticket));
    EXPECT_EQ(driver_.launches(kernels::cuda::kReadKernel), ++awaited) << "later steps are not done";
    ASSERT_EQ(results->size(), late.rows.size());
    for (uint32_t i = 0; i < late.rows.size(); ++i) {
      const uint32_t row = late.rows[i];
      const auto& result = (*results)[i];
      // The second sequence of row 3 began before step 10 was queued, and step 7 was the last that had been awaited.
      if (row == CudaStream::kNoRow || (row == 3 && late.step >= 7 && late.step < 10)) {
        EXPECT_FALSE(result.has_value()) << "step " << late.step << ", row " << row;
        continue;
      }
      ASSERT_TRUE(result.has_value()) << "step " << late.step << ", row " << row;
      if (row == 5 && late.step >= 6) {
        EXPECT_THAT(TextOf(*result), HasSubstr("token id 9 is NaN"));
        continue;
      }
      EXPECT_EQ(TextOf(*result), TextOf(StepOnHost(row))) << "step " << late.step << ", row " << row;
      EXPECT_EQ(on_stream_[row]->position(), on_host_[row]->position());
    }
  };
  for (uint32_t step = 0; step < 30; ++step) {
    if (step == 10) Put(3, 1);
    const std::vector<uint32_t> rows = RowsOf(step);
    queued.push_back({Queue(rows, step == 6 ? 5 : kRows), step, rows});
    if (queued.size() > kLate) await();
  }
  while (!queued.empty()) await();
  EXPECT_EQ(on_stream_[5]->position(), on_host_[5]->position()) << "where it stood";
  EXPECT_EQ(on_stream_[1]->tokens(), on_host_[1]->tokens());
  EXPECT_GT(on_stream_[1]->tokens().size(), 24u);
  EXPECT_EQ(driver_.calls("StreamSynchronize"), waits);
  stream_.reset();  // waits for the remaining work
}

TEST_F(CudaStreamTest, LeavesGraphsOfOthersValid) {
  EXPECT_TRUE(driver_.Capture(reinterpret_cast<CUstream_st*>(uintptr_t{78}), [&] {
    Put(0, 0);
    const CudaStream::Ticket ticket = Queue({0});
    EXPECT_TRUE(stream_->IsDone(ticket).ok());
    EXPECT_TRUE(stream_->Await(ticket).ok());
    stream_.reset();
  }));
}

// The tokens of steps have different addresses, which no upload needs.
TEST_F(CudaStreamTest, SameRowsUploadOnce) {
  Put(0, 0);
  Put(1, 0);
  stream_->Await(Queue({1, 0})).status().IgnoreError();
  const uint64_t uploaded = driver_.uploaded_bytes();
  for (uint32_t step = 0; step < 2 * CudaStream::kMostTickets; ++step) {
    ASSERT_TRUE(stream_->Await(Queue({1, 0})).ok());
    EXPECT_EQ(driver_.uploaded_bytes(), uploaded);
  }
  // Many hosts have their work in the default stream.
  const auto queued = stream_->Step(MakeStep(std::vector<uint32_t>{0, 1}), nullptr);
  ASSERT_TRUE(queued.ok()) << queued.status();
  ASSERT_TRUE(stream_->Await(queued->ticket).ok());
  EXPECT_GT(driver_.uploaded_bytes(), uploaded);
}

TEST_F(CudaStreamTest, OptionsThatNeedTheHostAreRefused) {
  const auto refusal = [&](auto change) {
    SequenceOptions options = MakeOptions(1, 0);
    change(&options.parameters);
    auto sequence = LocalSequence::Open(options);
    EXPECT_TRUE(sequence.ok()) << sequence.status();
    const absl::Status status = stream_->Put(0, *std::move(sequence));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal([](auto* p) { p->mutable_dry()->set_multiplier(1); }), HasSubstr("parameters.dry"));
  EXPECT_THAT(refusal([](auto* p) { p->set_no_repeat_ngram_size(2); }), HasSubstr("no_repeat_ngram_size"));
  EXPECT_THAT(refusal([](auto* p) { p->mutable_penalty_scope()->set_window(9); }), HasSubstr("penalty_scope"));
  EXPECT_THAT(refusal([](auto* p) { p->add_allowed_token_ids(9); }), HasSubstr("allowed_token_ids"));
  EXPECT_THAT(refusal([](auto* p) {
                v1::Phase& phase = *p->add_phases();
                phase.set_max_tokens(4);
                phase.add_then(9);
              }),
              HasSubstr("parameters.phases"));
  EXPECT_THAT(refusal([](auto* p) {
                auto* word = p->add_bad_words();
                word->add_tokens(1);
                word->add_tokens(2);
              }),
              HasSubstr("parameters.bad_words"));
}

TEST_F(CudaStreamTest, MistakesQueueNothing) {
  const std::vector<uint32_t> rows = {0, CudaStream::kNoRow};
  const auto code = [&](std::vector<uint32_t> some) {
    return stream_->Step(MakeStep(some), kOwnStream).status().code();
  };
  EXPECT_EQ(code(rows), absl::StatusCode::kFailedPrecondition);
  Put(0, 0);
  EXPECT_EQ(stream_->Put(kRows, on_stream_[0]).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(stream_->Clear(kRows).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({0, 0}), absl::StatusCode::kInvalidArgument) << "named twice";
  EXPECT_EQ(code({0, 1}), absl::StatusCode::kInvalidArgument) << "no sequence";
  EXPECT_EQ(code({kRows}), absl::StatusCode::kInvalidArgument);
  driver_.SetCapturing(true);
  EXPECT_EQ(code(rows), absl::StatusCode::kFailedPrecondition);
  driver_.SetCapturing(false);
  EXPECT_EQ(driver_.launches(), 0u);
  const CudaStream::Ticket first = Queue(rows);
  for (size_t i = 1; i < CudaStream::kMostTickets; ++i) Queue(rows);
  EXPECT_EQ(code(rows), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(stream_->Await(first + 1).status().code(), absl::StatusCode::kInvalidArgument) << "out of order";
  EXPECT_TRUE(stream_->Wait(first + 1).ok());
  const auto results = stream_->Await(first);
  ASSERT_TRUE(results.ok());
  EXPECT_TRUE((*results)[0].has_value());
  EXPECT_FALSE((*results)[1].has_value());
  ASSERT_TRUE(stream_->Clear(0).ok());
  EXPECT_FALSE((*stream_->Await(first + 1))[0].has_value());
}

}  // namespace
}  // namespace sortition::client::cuda_stream_test
