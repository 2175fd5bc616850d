// libsortition on CUDA, over a driver whose kernels run in the emulator.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "client/sortition/cuda_state.h"
#include "client/sortition/sampler.h"
#include "kernels/law/chain.h"
#include "kernels/law/logprob.h"
#include "kernels/law/reference.h"
#include "tests/conformance/answer_printer.h"
#include "tests/conformance/random_row.h"
#include "tests/cuda/fake_driver.h"

namespace sortition {
namespace {

using kernels::RandomRow;
using kernels::RowAnswer;
using kernels::RowParameters;
using testing::FakeCudaDriver;
using ::testing::HasSubstr;

CUstream_st* const kStream = reinterpret_cast<CUstream_st*>(uintptr_t{77});

// A sampler, and a batch of random rows of one type in the device's memory.
class CudaLibrary : public ::testing::Test {
 protected:
  static constexpr uint32_t kRows = 9;
  static constexpr uint32_t kVocabulary = 3000;

  std::unique_ptr<CudaSampler> Create(const CudaLimits& limits) {
    const devices::cuda::Api api = driver_.api();
    const devices::cuda::Hardware hardware = devices::cuda::FindHardware(api)->at(0);
    auto context = devices::cuda::Context::Create(api, hardware, FakeCudaDriver::Images());
    if (!context.ok()) ADD_FAILURE() << context.status();
    auto state = CudaSampler::State::Create(*std::move(context), limits);
    if (!state.ok()) ADD_FAILURE() << state.status();
    return std::make_unique<CudaSampler>(*std::move(state));
  }

  CudaLimits Limits() const {
    return {.rows = 10, .vocabulary = 4000, .patches = 2000, .top = kernels::kMaxTopLogprobs, .kept = 4000};
  }

  // Rows as RandomRow has them, every second with a chain, but of one type and size, without lists of allowed tokens.
  void MakeRows() {
    for (uint64_t seed = 1; rows_.size() < kRows; ++seed) {
      auto row = std::make_unique<RandomRow>(
          seed, kVocabulary, rows_.size() % 2 == 0 ? kernels::RowOptions::kPlain : kernels::RowOptions::kChained);
      const kernels::RowRequest& request = row->request();
      const bool fits = request.dtype == kernels::DType::kBF16 && request.live_vocabulary == kVocabulary &&
                        !request.has_allowed_tokens && request.allowed_bits == nullptr;
      if (!fits) continue;
      parameters_[rows_.size()] = *request.parameters;
      parameters_[rows_.size()].entropy = rows_.size() % 3 == 1;
      parameters_[rows_.size()].kept_tokens = rows_.size() % 4 == 3;
      rows_.push_back(std::move(row));
    }
    batch_ = {.row_bytes = (2 * kVocabulary + 15) / 16 * 16,
              .dtype = kernels::DType::kBF16,
              .rows = kRows,
              .vocabulary = kVocabulary};
    logits_ = static_cast<std::byte*>(driver_.Allocate(batch_.row_bytes * kRows));
    batch_.logits = logits_;
    batch_.tokens = static_cast<int32_t*>(driver_.Allocate(4 * kRows));
    batch_.logprobs = static_cast<float*>(driver_.Allocate(4 * kRows));
    for (uint32_t i = 0; i < kRows; ++i) {
      std::memcpy(logits_ + batch_.row_bytes * i, rows_[i]->tensor().data(), 2 * kVocabulary);
    }
  }

  void SetRows(CudaSampler* sampler) {
    for (uint32_t i = 0; i < kRows; ++i) {
      const kernels::RowRequest& request = rows_[i]->request();
      ASSERT_TRUE(sampler->SetRow(i, parameters_[i], request.noise).ok());
      ASSERT_TRUE(sampler->SetSamplerState(i, request.sampler_state).ok());
      states_[i] = request.sampler_state;
      ASSERT_TRUE(sampler->SetPatches(i, request.patches).ok());
    }
  }

  // Of rows with the states that the last Sample began with.
  void ExpectRight(CudaSampler* sampler, std::vector<kernels::RowRequest> requests) {
    std::vector<RowAnswer> answers(kRows);
    ASSERT_TRUE(sampler->Download(kStream, answers).ok());
    for (uint32_t i = 0; i < kRows; ++i) {
      requests[i].sampler_state = states_[i];
      const RowAnswer expected = law::SampleRowReference(requests[i]);
      EXPECT_EQ(answers[i], expected) << rows_[i]->description();
      const bool failed = expected.error != kernels::RowError::kNone;
      if (!failed) states_[i] = expected.sampler_state;
      EXPECT_EQ(batch_.tokens[i], failed ? -1 : int32_t(expected.token));
      const RowParameters& p = *requests[i].parameters;
      float logprob = 0;
      if (!failed && p.processed_logprob) {
        logprob =
            law::Logprob(expected.processed, expected.processed.chosen.bits, law::ProcessedTemperature(p, expected));
      }
      if (!failed && p.raw_logprob) logprob = law::Logprob(expected.raw, expected.raw.chosen.bits, 1);
      EXPECT_EQ(batch_.logprobs[i], logprob);
    }
  }

  std::vector<kernels::RowRequest> Requests() const {
    std::vector<kernels::RowRequest> requests;
    for (size_t i = 0; i < rows_.size(); ++i) {
      requests.push_back(rows_[i]->request());
      requests.back().parameters = &parameters_[i];
    }
    return requests;
  }

  FakeCudaDriver driver_;
  std::vector<std::unique_ptr<RandomRow>> rows_;
  RowParameters parameters_[kRows];
  uint64_t states_[kRows] = {};
  CudaBatch batch_;
  std::byte* logits_ = nullptr;
};

TEST_F(CudaLibrary, SamplesABatchInTheDevicesMemory) {
  MakeRows();
  const auto sampler = Create(Limits());
  ASSERT_TRUE(sampler->Bind(batch_).ok());
  SetRows(sampler.get());
  ASSERT_TRUE(sampler->Upload(kStream).ok());
  ASSERT_TRUE(sampler->Sample(kStream).ok());
  ExpectRight(sampler.get(), Requests());
}

// What samplers carry from step to step stays where it is; SetRow begins anew.
TEST_F(CudaLibrary, SamplerStatesGoOn) {
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
      requests[i].patches = {};
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

// Rows that score and verify, the tokens and the drafter's probabilities read where they lie; one row has no draft.
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
      const RowAnswer drawn = law::SampleRowReference(request);
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
      q[request.given] += i == 7 ? 0.5f : 0.25f;
      if (is_certain) continue;
      request.draft.form = kernels::DraftDistribution::Form::kDense;
      request.draft.dense = q;
    }
    ASSERT_TRUE(sampler->Upload(kStream).ok());
    ASSERT_TRUE(sampler->Sample(kStream).ok());
    ExpectRight(sampler.get(), requests);
    std::vector<RowAnswer> answers(kRows);
    ASSERT_TRUE(sampler->Download(kStream, answers).ok());
    for (uint32_t i = 0; i < kRows; ++i) {
      if (answers[i].error != kernels::RowError::kNone) continue;
      EXPECT_EQ(batch_.accepted[i], answers[i].accepted);
      accepted += batch_.accepted[i];
    }
    EXPECT_EQ(answers[7].error == kernels::RowError::kDraftSum, !is_certain);
  }
  EXPECT_GE(accepted, 2);
}

// As replays of a graph see it: the same launches, other logits, positions and masks.
TEST_F(CudaLibrary, LaunchesReadWhatIsThereWhenTheyRun) {
  MakeRows();
  auto* const positions = static_cast<uint32_t*>(driver_.Allocate(4 * kRows));
  auto* const mask = static_cast<uint32_t*>(driver_.Allocate(4 * (kVocabulary + 31) / 32));
  batch_.positions = positions;
  batch_.allowed_bits = mask;
  const auto sampler = Create(Limits());
  ASSERT_TRUE(sampler->Bind(batch_).ok());
  SetRows(sampler.get());
  ASSERT_TRUE(sampler->Upload(kStream).ok());
  driver_.SetCapturing(true);
  for (uint32_t step = 0; step < 3; ++step) {
    std::vector<kernels::RowRequest> requests = Requests();
    for (uint32_t i = 0; i < (kVocabulary + 31) / 32; ++i) mask[i] = 0x5bd1e995u * (i + step) | 0x10001u;
    for (uint32_t i = 0; i < kRows; ++i) {
      positions[i] = 100 * step + i;
      requests[i].noise.position = positions[i];
      requests[i].allowed_bits = mask;
      std::byte* const logits = logits_ + batch_.row_bytes * i;
      std::memcpy(logits, rows_[(i + step) % kRows]->tensor().data(), 2 * kVocabulary);
      requests[i].logits = logits;
    }
    driver_.SetCapturing(true);
    ASSERT_TRUE(sampler->Sample(kStream).ok());
    driver_.SetCapturing(false);
    ExpectRight(sampler.get(), requests);
  }
}

TEST_F(CudaLibrary, PatchesFollow) {
  MakeRows();
  const auto sampler = Create(Limits());
  ASSERT_TRUE(sampler->Bind(batch_).ok());
  SetRows(sampler.get());
  ASSERT_TRUE(sampler->Upload(kStream).ok());
  for (int step = 1; step < 6; ++step) {
    std::vector<kernels::RowRequest> requests = Requests();
    std::vector<kernels::TokenPatch> patches;
    for (int i = 0; i < step; ++i) patches.push_back({.token = uint32_t(37 * i), .bias = BiasBits(float(step))});
    requests[2].patches = patches;
    ASSERT_TRUE(sampler->SetPatches(2, patches).ok());
    EXPECT_EQ(sampler->Sample(kStream).code, StatusCode::kFailedPrecondition);
    ASSERT_TRUE(sampler->Upload(kStream).ok());
    ASSERT_TRUE(sampler->Sample(kStream).ok());
    ExpectRight(sampler.get(), requests);
  }
}

TEST_F(CudaLibrary, MistakesAreNamed) {
  MakeRows();
  const auto sampler = Create({.rows = kRows, .vocabulary = 3000, .patches = 2, .top = 5, .kept = 7});
  const auto refused = [&](auto change) {
    CudaBatch batch = batch_;
    change(&batch);
    const Status status = sampler->Bind(batch);
    EXPECT_EQ(status.code, StatusCode::kInvalidArgument);
    return status.message;
  };
  EXPECT_EQ(sampler->Upload(kStream).code, StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused([](CudaBatch* b) { b->rows = kRows + 1; }), HasSubstr("rows is 10"));
  EXPECT_THAT(refused([](CudaBatch* b) { b->vocabulary = 3001; }), HasSubstr("vocabulary is 3001"));
  EXPECT_THAT(refused([](CudaBatch* b) { b->row_bytes = 6008; }), HasSubstr("multiples of 16"));
  EXPECT_THAT(refused([](CudaBatch* b) { b->logits = static_cast<const std::byte*>(b->logits) + 2; }),
              HasSubstr("multiples of 16"));
  alignas(16) static int32_t on_host[16];
  EXPECT_THAT(refused([](CudaBatch* b) { b->logits = on_host; }), HasSubstr("batch.logits is not in the memory"));
  EXPECT_THAT(refused([](CudaBatch* b) { b->tokens = on_host; }), HasSubstr("batch.tokens"));
  EXPECT_THAT(refused([](CudaBatch* b) { b->tokens = nullptr; }), HasSubstr("batch.tokens"));
  EXPECT_THAT(refused([](CudaBatch* b) { b->draft = b->logits; }), HasSubstr("batch.draft_row_bytes"));
  EXPECT_THAT(refused([](CudaBatch* b) { b->given = reinterpret_cast<const uint32_t*>(on_host); }),
              HasSubstr("batch.given"));
  const auto is_moved = [](auto CudaBatch::*field) {
    return [field](CudaBatch* b) {
      b->*field = reinterpret_cast<std::remove_reference_t<decltype(b->*field)>>(AddressOf(b->tokens) + 1);
    };
  };
  EXPECT_THAT(refused(is_moved(&CudaBatch::tokens)), HasSubstr("batch.tokens is not a multiple of 4"));
  EXPECT_THAT(refused(is_moved(&CudaBatch::logprobs)), HasSubstr("batch.logprobs is not a multiple of 4"));
  EXPECT_THAT(refused(is_moved(&CudaBatch::positions)), HasSubstr("batch.positions is not a multiple of 4"));
  EXPECT_THAT(refused(is_moved(&CudaBatch::given)), HasSubstr("batch.given is not a multiple of 4"));
  EXPECT_THAT(refused(is_moved(&CudaBatch::accepted)), HasSubstr("batch.accepted is not a multiple of 4"));
  EXPECT_THAT(refused(is_moved(&CudaBatch::allowed_bits)), HasSubstr("batch.allowed_bits is not a multiple of 4"));
  void* pinned = nullptr;
  ASSERT_EQ(driver_.api().MemHostAlloc(&pinned, 64, 0), devices::cuda::Result::kSuccess);
  EXPECT_THAT(refused([&](CudaBatch* b) { b->tokens = static_cast<int32_t*>(pinned); }),
              HasSubstr("batch.tokens is not in the memory of CUDA device 0"));
  driver_.api().MemFreeHost(pinned);
  void* const elsewhere = driver_.Allocate(64, 1);
  EXPECT_THAT(refused([&](CudaBatch* b) { b->logprobs = static_cast<float*>(elsewhere); }), HasSubstr("logprobs"));

  ASSERT_TRUE(sampler->Bind(batch_).ok());
  EXPECT_THAT(sampler->Upload(kStream).message, HasSubstr("row 0 was never set"));
  RowParameters parameters;
  EXPECT_EQ(sampler->SetRow(kRows, parameters, {}).code, StatusCode::kInvalidArgument);
  parameters.raw_logprob = true;
  parameters.raw_top = 6;
  EXPECT_THAT(sampler->SetRow(0, parameters, {}).message, HasSubstr("raw_top"));
  parameters = RowParameters();
  parameters.kept_tokens = true;
  EXPECT_THAT(sampler->SetRow(0, parameters, {}).message, HasSubstr("limits.kept, 7"));
  parameters.top_k = 7;
  EXPECT_TRUE(sampler->SetRow(0, parameters, {}).ok());
  EXPECT_EQ(sampler->SetTask(kRows, kernels::RowTask::kScore).code, StatusCode::kInvalidArgument);
  ASSERT_TRUE(sampler->SetTask(0, kernels::RowTask::kScore).ok());
  EXPECT_EQ(sampler->SetSamplerState(kRows, 1).code, StatusCode::kInvalidArgument);
  const kernels::TokenPatch twice[] = {{.token = 4}, {.token = 4}};
  EXPECT_THAT(sampler->SetPatches(0, twice).message, HasSubstr("patches[1]"));
  EXPECT_THAT(sampler->SetPatches(0, std::vector<kernels::TokenPatch>(3)).message, HasSubstr("at most 2"));

  for (uint32_t i = 0; i < kRows; ++i) ASSERT_TRUE(sampler->SetRow(i, RowParameters(), {}).ok());
  EXPECT_THAT(sampler->Upload(kStream).message, HasSubstr("row 0 has a task that needs batch.given"));
  ASSERT_TRUE(sampler->SetTask(0, kernels::RowTask::kDraw).ok());
  EXPECT_THAT(sampler->Upload(nullptr).message, HasSubstr("null stream"));
  driver_.SetCapturing(true);
  EXPECT_EQ(sampler->Upload(kStream).code, StatusCode::kFailedPrecondition);
  driver_.SetCapturing(false);
  EXPECT_EQ(sampler->Sample(kStream).code, StatusCode::kFailedPrecondition);
  ASSERT_TRUE(sampler->Upload(kStream).ok());
  EXPECT_THAT(sampler->Sample(nullptr).message, HasSubstr("null stream"));
  EXPECT_THAT(sampler->Sample(devices::cuda::kStreamLegacy).message, HasSubstr("null stream"));
  driver_.FailKernel(devices::cuda::Result::kLaunchFailed);
  ASSERT_TRUE(sampler->Sample(kStream).ok());
  std::vector<RowAnswer> answers(1);
  EXPECT_EQ(sampler->Download(kStream, answers).code, StatusCode::kUnavailable);
  driver_.FailKernel(devices::cuda::Result::kSuccess);
}

// A step is as few launches as its rows need, and no row's options are paid for by a batch without it.
TEST_F(CudaLibrary, BatchesLaunchTheKernelsThatTheirRowsNeed) {
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

// The driver's own check at its end finds what is left over.
TEST_F(CudaLibrary, WhatFailsAtTheStartIsTypedAndLeavesNothing) {
  const devices::cuda::Api api = driver_.api();
  const devices::cuda::Hardware hardware = devices::cuda::FindHardware(api)->at(0);
  const auto create = [&]() -> absl::Status {
    auto context = devices::cuda::Context::Create(api, hardware, FakeCudaDriver::Images());
    if (!context.ok()) return context.status();
    return CudaSampler::State::Create(*std::move(context), Limits()).status();
  };
  int failures = 0;
  for (const char* const function : {"DevicePrimaryCtxRetain", "ModuleLoadData", "ModuleGetFunction", "MemAlloc",
                                     "MemsetD8", "MemHostAlloc", "EventCreate"}) {
    const uint64_t before = driver_.calls(function);
    ASSERT_TRUE(create().ok());
    const auto calls = int(driver_.calls(function) - before);
    for (int nth = 1; nth <= calls; ++nth) {
      driver_.Fail(function, devices::cuda::Result::kOutOfMemory, nth);
      EXPECT_EQ(create().code(), absl::StatusCode::kResourceExhausted) << function << " " << nth;
      ++failures;
    }
  }
  EXPECT_GE(failures, 16);
}

// A device that is lost is no mistake of the caller's.
TEST_F(CudaLibrary, BindSaysThatTheDeviceIsLost) {
  MakeRows();
  const auto sampler = Create(Limits());
  driver_.Fail("PointerGetAttribute", devices::cuda::Result::kIllegalAddress);
  EXPECT_EQ(sampler->Bind(batch_).code, StatusCode::kUnavailable);
  EXPECT_TRUE(sampler->Bind(batch_).ok());
}

TEST(Library, WithoutADriverThereIsNoCudaSampler) {
  std::unique_ptr<CudaSampler> sampler;
  const Status status = CudaSampler::Create(1000, {}, &sampler);
  EXPECT_EQ(status.code, StatusCode::kNotFound) << status.message;
  EXPECT_EQ(sampler, nullptr);
}

}  // namespace
}  // namespace sortition
