// libsortition on CUDA, over a driver whose kernels run in the emulator.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "tests/library/cuda_library.h"

namespace sortition::cuda_sampler_test {
namespace {

using kernels::RowOutput;
using kernels::RowParameters;

TEST_F(CudaLibrary, SamplesBatchInDeviceMemory) {
  MakeRows();
  const auto sampler = Create(Limits());
  ASSERT_TRUE(sampler->Bind(batch_).ok());
  SetRows(sampler.get());
  ASSERT_TRUE(sampler->Upload(kStream).ok());
  ASSERT_TRUE(sampler->Sample(kStream).ok());
  ExpectRight(sampler.get(), Requests());
}

// Errors, logprobs and first tokens stay where the caller wants them; only existing kept tokens are copied to the host.
TEST_F(CudaLibrary, MasksUnkeptTokensInDeviceMemory) {
  MakeRows();
  const CudaLimits limits = Limits();
  batch_.outputs = static_cast<kernels::cuda::RawOutput*>(driver_.Allocate(sizeof(kernels::cuda::RawOutput) * kRows));
  batch_.raw_top =
      static_cast<kernels::cuda::TopToken*>(driver_.Allocate(sizeof(kernels::cuda::TopToken) * limits.top * kRows));
  batch_.processed_top =
      static_cast<kernels::cuda::TopToken*>(driver_.Allocate(sizeof(kernels::cuda::TopToken) * limits.top * kRows));
  // One row fails.
  const uint16_t nan = 0x7fc0;
  std::memcpy(logits_ + batch_.row_bytes * 6 + 2 * 17, &nan, sizeof(nan));
  const auto sampler = Create(limits);
  ASSERT_TRUE(sampler->Bind(batch_).ok());
  std::vector<kernels::RowRequest> requests = Requests();
  for (uint32_t i = 0; i < kRows; ++i) {
    RowOptions options = {.parameters = {.temperature = 0.7f, .top_k = 40}, .raw_logprob = true, .raw_top = 3 + i};
    options.processed_logprob = true;
    options.processed_top = 20 - i;
    options.kept_tokens = i == 5;
    ASSERT_TRUE(Compile(options, &parameters_[i]).ok());
    ASSERT_TRUE(sampler->SetRow(i, parameters_[i], requests[i].noise).ok());
    requests[i].logits = logits_ + batch_.row_bytes * i;
    requests[i].edits = {};
  }
  ASSERT_TRUE(sampler->Upload(kStream).ok());
  ASSERT_TRUE(sampler->Sample(kStream).ok());
  const uint64_t before = driver_.downloaded_bytes();
  ExpectRight(sampler.get(), requests);
  EXPECT_EQ(driver_.downloaded_bytes() - before,
            kRows * (sizeof(kernels::cuda::RawOutput) + sizeof(kernels::cuda::ChainedOutput) +
                     2 * sizeof(kernels::cuda::TopToken) * limits.top) +
                law::SampleRowReference(requests[5]).kept_tokens.size() * sizeof(kernels::TokenBits));
  uint32_t sampled = 0;
  for (uint32_t i = 0; i < kRows; ++i) {
    const RowOutput expected = law::SampleRowReference(requests[i]);
    const kernels::cuda::RawOutput& output = batch_.outputs[i];
    EXPECT_EQ(output.error, expected.error);
    EXPECT_EQ(output.error_token, expected.error_token);
    if (expected.error != kernels::RowFault::kNone) continue;
    ++sampled;
    const double temperature = law::ProcessedTemperature(parameters_[i], expected);
    const auto expect_top = [&](const kernels::Distribution& wanted, const kernels::cuda::DistributionOutput& got,
                                const kernels::cuda::TopToken* top, double at) {
      EXPECT_EQ(got.logprob, law::Logprob(wanted, wanted.chosen.bits, at));
      EXPECT_EQ(got.rank, wanted.rank);
      ASSERT_EQ(got.top_count, wanted.top.size());
      for (size_t j = 0; j < wanted.top.size(); ++j) {
        EXPECT_EQ(top[j].token, wanted.top[j].token);
        EXPECT_EQ(top[j].logprob, law::Logprob(wanted, wanted.top[j].bits, at));
      }
    };
    expect_top(expected.raw, output.raw, batch_.raw_top + limits.top * i, 1);
    expect_top(expected.processed, output.processed, batch_.processed_top + limits.top * i, temperature);
  }
  EXPECT_EQ(batch_.outputs[6].error, kernels::RowFault::kNaN);
  EXPECT_GE(sampled, 6u);
}

// Samplers' states between steps stay on the device; SetRow resets them.
TEST_F(CudaLibrary, SamplerStatesContinue) {
  MakeRows();
  for (uint32_t i = 0; i < kRows; ++i) {
    law::SamplingParameters options;
    options.mirostat = i % 3;
    options.adaptive_p = i % 3 == 0;
    options.adaptive_target = 0.3f;
    RowParameters compiled;
    ASSERT_TRUE(Compile({.parameters = options, .entropy = true}, &compiled).ok());
    parameters_[i] = compiled;
  }
  const auto sampler = Create(Limits());
  ASSERT_TRUE(sampler->Bind(batch_).ok());
  std::vector<kernels::RowRequest> requests = Requests();
  for (int begin = 0; begin < 2; ++begin) {
    for (uint32_t i = 0; i < kRows; ++i) {
      ASSERT_TRUE(sampler->SetRow(i, parameters_[i], requests[i].noise).ok());
      requests[i].edits = {};
      states_[i] = kernels::InitialSamplerState(parameters_[i].chain);
    }
    ASSERT_TRUE(sampler->Upload(kStream).ok());
    uint32_t moved = 0;
    for (int step = 0; step < 3; ++step) {
      const std::vector<uint64_t> before(states_, states_ + kRows);
      ASSERT_TRUE(sampler->Sample(kStream).ok());
      ExpectRight(sampler.get(), requests);
      for (uint32_t i = 0; i < kRows; ++i) moved += states_[i] != before[i];
    }
    EXPECT_GE(moved, 2 * kRows);
  }
}

// Rows that score and verify, with tokens and drafters' probabilities read in place; one row has no draft.
TEST_F(CudaLibrary, ScoresAndVerifies) {
  MakeRows();
  auto* const given = static_cast<uint32_t*>(driver_.Allocate(4 * kRows));
  auto* const draft = static_cast<float*>(driver_.Allocate(4 * kVocabulary * kRows));
  batch_.given = given;
  batch_.accepted = static_cast<int32_t*>(driver_.Allocate(4 * kRows));
  const auto sampler = Create(Limits());
  int accepted = 0;
  for (const bool is_certain : {true, false}) {
    batch_.draft = is_certain ? nullptr : draft;
    batch_.draft_row_bytes = 4 * kVocabulary;
    ASSERT_TRUE(sampler->Bind(batch_).ok());
    SetRows(sampler.get());
    std::vector<kernels::RowRequest> requests = Requests();
    for (uint32_t i = 0; i < kRows; ++i) {
      kernels::RowRequest& request = requests[i];
      const RowOutput drawn = law::SampleRowReference(request);
      request.given = i % 2 == 0 ? drawn.token : 17 * i;
      request.task = i % 3 == 0 ? kernels::RowTask::kScore : kernels::RowTask::kVerify;
      ASSERT_TRUE(sampler->SetTask(i, request.task).ok());
      given[i] = request.given;
      if (i == 4) {
        given[i] = ~0u;
        request.task = kernels::RowTask::kDraw;
      }
      float* const q = draft + kVocabulary * i;
      std::fill_n(q, kVocabulary, 0.75f / kVocabulary);
      // Tokens that the row itself draws are unlikely drafts, and so are accepted.
      q[i % 2 == 0 ? (request.given + 1) % kVocabulary : request.given] += i == 7 ? 0.5f : 0.25f;
      if (is_certain) continue;
      request.draft.form = kernels::DraftDistribution::Form::kDense;
      request.draft.dense = q;
    }
    ASSERT_TRUE(sampler->Upload(kStream).ok());
    ASSERT_TRUE(sampler->Sample(kStream).ok());
    ExpectRight(sampler.get(), requests);
    std::vector<RowOutput> answers(kRows);
    ASSERT_TRUE(sampler->Download(kStream, answers).ok());
    for (uint32_t i = 0; i < kRows; ++i) {
      if (answers[i].error != kernels::RowFault::kNone) continue;
      EXPECT_EQ(batch_.accepted[i], answers[i].accepted);
      accepted += batch_.accepted[i];
    }
    EXPECT_EQ(answers[7].error == kernels::RowFault::kDraftSum, !is_certain);
  }
  EXPECT_GE(accepted, 1);
}

TEST_F(CudaLibrary, SetEditsApplies) {
  MakeRows();
  const auto sampler = Create(Limits());
  ASSERT_TRUE(sampler->Bind(batch_).ok());
  SetRows(sampler.get());
  ASSERT_TRUE(sampler->Upload(kStream).ok());
  for (int step = 1; step < 6; ++step) {
    std::vector<kernels::RowRequest> requests = Requests();
    std::vector<kernels::LogitEdit> edits;
    for (int i = 0; i < step; ++i) edits.push_back({.token = uint32_t(37 * i), .bias = BiasBits(float(step))});
    requests[2].edits = edits;
    ASSERT_TRUE(sampler->SetEdits(2, edits).ok());
    EXPECT_EQ(sampler->Sample(kStream).code, StatusCode::kFailedPrecondition);
    const uint64_t before = driver_.uploaded_bytes();
    ASSERT_TRUE(sampler->Upload(kStream).ok());
    EXPECT_LE(driver_.uploaded_bytes() - before,
              (sizeof(kernels::cuda::RowInput) + sizeof(kernels::cuda::ChainedInput)) * kRows +
                  sizeof(kernels::LogitEdit) * edits.size())
        << "no other row's edits";
    ASSERT_TRUE(sampler->Sample(kStream).ok());
    ExpectRight(sampler.get(), requests);
  }
}

// Edits whose upload failed are copied with the next upload.
TEST_F(CudaLibrary, EditsSurviveFailedUpload) {
  MakeRows();
  const auto sampler = Create(Limits());
  ASSERT_TRUE(sampler->Bind(batch_).ok());
  SetRows(sampler.get());
  ASSERT_TRUE(sampler->Upload(kStream).ok());
  std::vector<kernels::RowRequest> requests = Requests();
  std::vector<kernels::LogitEdit> edits(requests[2].edits.begin(), requests[2].edits.end());
  for (const char* const function : {"MemcpyHtoDAsync", "EventRecord"}) {
    const uint32_t token = edits.empty() ? 0 : edits.back().token + 1;
    edits.push_back({.token = token, .bias = BiasBits(3)});
    ASSERT_TRUE(sampler->SetEdits(2, edits).ok());
    driver_.Fail(function, devices::cuda::Result::kOutOfMemory);
    EXPECT_EQ(sampler->Upload(kStream).code, StatusCode::kResourceExhausted) << function;
    EXPECT_EQ(sampler->Sample(kStream).code, StatusCode::kFailedPrecondition);
    ASSERT_TRUE(sampler->Upload(kStream).ok());
    ASSERT_TRUE(sampler->Sample(kStream).ok());
    requests[2].edits = edits;
    ExpectRight(sampler.get(), requests);
  }
}

// A captured step, replayed over other logits, positions, masks and penalties.
TEST_F(CudaLibrary, GraphReadsMemoryAtReplay) {
  MakeRows();
  auto* const positions = static_cast<uint32_t*>(driver_.Allocate(4 * kRows));
  auto* const mask = static_cast<uint32_t*>(driver_.Allocate(4 * (kVocabulary + 31) / 32));
  batch_.positions = positions;
  batch_.allowed_bits = mask;
  const auto sampler = Create(Limits());
  ASSERT_TRUE(sampler->Bind(batch_).ok());
  SetRows(sampler.get());
  ASSERT_TRUE(sampler->Upload(kStream).ok());
  const uint64_t launches = driver_.launches();
  const std::function<void()> replay = driver_.Capture(kStream, [&] {
    EXPECT_EQ(sampler->Upload(kStream).code, StatusCode::kFailedPrecondition);
    ASSERT_TRUE(sampler->Sample(kStream).ok());
  });
  EXPECT_EQ(driver_.launches(), launches) << "captured, not done";
  std::vector<kernels::RowRequest> requests = Requests();
  std::vector<kernels::LogitEdit> edits(requests[3].edits.begin(), requests[3].edits.end());
  for (uint32_t step = 0; step < 3; ++step) {
    if (step == 2) {
      edits.push_back({.token = edits.empty() ? 0 : edits.back().token + 1, .bias = BiasBits(4)});
      ASSERT_TRUE(sampler->SetEdits(3, edits).ok());
      ASSERT_TRUE(sampler->Upload(kStream).ok());
    }
    requests[3].edits = edits;
    for (uint32_t i = 0; i < (kVocabulary + 31) / 32; ++i) mask[i] = 0x5bd1e995u * (i + step) | 0x10001u;
    for (uint32_t i = 0; i < kRows; ++i) {
      positions[i] = 100 * step + i;
      requests[i].noise.position = positions[i];
      requests[i].allowed_bits = mask;
      std::byte* const logits = logits_ + batch_.row_bytes * i;
      std::memcpy(logits, rows_[(i + step) % kRows]->tensor().data(), 2 * kVocabulary);
      requests[i].logits = logits;
    }
    replay();
    ExpectRight(sampler.get(), requests);
  }
}

// A step takes only the launches that its rows need.
TEST_F(CudaLibrary, BatchLaunchesOnlyNeededKernels) {
  MakeRows();
  const auto sampler = Create(Limits());
  ASSERT_TRUE(sampler->Bind(batch_).ok());
  const law::SamplingParameters greedy = {.temperature = 0};
  const law::SamplingParameters top_k = {.temperature = 0.7f, .top_k = 50, .top_p = 0.95f};
  const law::SamplingParameters min_p = {.temperature = 1, .min_p = 0.05f};
  const law::SamplingParameters top_p = {.temperature = 1, .top_p = 0.95f};
  const law::SamplingParameters chain = {.top_k = 50, .xtc_probability = 0.5f};
  struct Case {
    const char* name;
    RowOptions options;
    bool weighs;
    bool chains;
  };
  const std::vector<Case> cases = {{"greedy", {.parameters = greedy}, false, false},
                                   {"top-k", {.parameters = top_k}, false, false},
                                   {"top-k, processed", {.parameters = top_k, .processed_logprob = true}, false, false},
                                   {"min-p", {.parameters = min_p}, false, false},
                                   {"temperature alone", {.parameters = {}}, false, false},
                                   {"unbounded top-p", {.parameters = top_p}, true, false},
                                   {"raw logprob", {.parameters = top_k, .raw_logprob = true}, true, false},
                                   {"greedy, raw logprob", {.parameters = greedy, .raw_logprob = true}, true, false},
                                   {"chain", {.parameters = chain}, false, true},
                                   {"chain, raw logprob", {.parameters = chain, .raw_logprob = true}, true, true}};
  for (const Case& one : cases) {
    // One row among greedy ones.
    for (uint32_t row = 0; row < kRows; ++row) {
      RowParameters compiled;
      ASSERT_TRUE(Compile(row == 4 ? one.options : RowOptions{.parameters = greedy}, &compiled).ok());
      ASSERT_TRUE(sampler->SetRow(row, compiled, {}).ok());
    }
    ASSERT_TRUE(sampler->Upload(kStream).ok());
    const uint64_t launches = driver_.launches();
    const uint64_t read = driver_.launches(kernels::cuda::kReadKernel);
    const uint64_t weigh = driver_.launches(kernels::cuda::kWeighKernel);
    const uint64_t chained = driver_.launches(kernels::cuda::kChainKernel);
    ASSERT_TRUE(sampler->Sample(kStream).ok());
    EXPECT_EQ(driver_.launches() - launches, 1u + one.weighs + one.chains) << one.name;
    EXPECT_EQ(driver_.launches(kernels::cuda::kReadKernel) - read, 1u) << one.name;
    EXPECT_EQ(driver_.launches(kernels::cuda::kWeighKernel) - weigh, one.weighs) << one.name;
    EXPECT_EQ(driver_.launches(kernels::cuda::kChainKernel) - chained, one.chains) << one.name;
  }
}

}  // namespace
}  // namespace sortition::cuda_sampler_test
