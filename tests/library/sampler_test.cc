// libsortition: its options, its CPU sampler, and its CUDA sampler over a driver whose kernels run in the emulator.
#include "client/sortition/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "client/sortition/cuda_state.h"
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

TEST(Library, OptionsAreJudgedByName) {
  RowParameters compiled;
  EXPECT_TRUE(Compile({}, &compiled).ok());
  EXPECT_EQ(compiled, RowParameters());
  const auto refused = [&](auto change) {
    RowOptions options;
    change(&options);
    const Status status = Compile(options, &compiled);
    EXPECT_EQ(status.code, StatusCode::kInvalidArgument);
    return status.message;
  };
  EXPECT_THAT(refused([](RowOptions* o) { o->parameters.temperature = 0.001f; }), HasSubstr("temperature"));
  EXPECT_THAT(refused([](RowOptions* o) { o->parameters.top_p = 0; }), HasSubstr("top_p"));
  EXPECT_THAT(refused([](RowOptions* o) { o->parameters.min_p = 1.5f; }), HasSubstr("min_p"));
  EXPECT_THAT(refused([](RowOptions* o) { o->parameters.top_k = 1u << 20; }), HasSubstr("top_k"));
  EXPECT_THAT(refused([](RowOptions* o) { o->parameters.repetition_penalty = 0; }), HasSubstr("repetition_penalty"));
  EXPECT_THAT(refused([](RowOptions* o) { o->parameters.presence_penalty = -101; }), HasSubstr("presence_penalty"));
  EXPECT_THAT(refused([](RowOptions* o) { o->parameters.frequency_penalty = std::numeric_limits<float>::quiet_NaN(); }),
              HasSubstr("frequency_penalty"));
  EXPECT_THAT(refused([](RowOptions* o) { o->raw_top = 3; }), HasSubstr("raw_top"));
  EXPECT_THAT(refused([](RowOptions* o) { o->parameters.typical_p = 0; }), HasSubstr("typical_p"));
  EXPECT_THAT(refused([](RowOptions* o) { o->parameters.top_n_sigma = 0.001f; }), HasSubstr("top_n_sigma"));
  EXPECT_THAT(refused([](RowOptions* o) { o->parameters.eta_cutoff = 2; }), HasSubstr("eta_cutoff"));
  EXPECT_THAT(refused([](RowOptions* o) { o->parameters.xtc_threshold = 0; }), HasSubstr("xtc_threshold"));
  EXPECT_THAT(refused([](RowOptions* o) { o->parameters.smoothing_curve = 4; }), HasSubstr("smoothing_curve"));
  EXPECT_THAT(refused([](RowOptions* o) { o->parameters.mirostat = 3; }), HasSubstr("mirostat"));
  EXPECT_THAT(refused([](RowOptions* o) { o->parameters.mirostat_m = 1; }), HasSubstr("mirostat_m"));
  EXPECT_THAT(refused([](RowOptions* o) {
                o->parameters.mirostat = 2;
                o->parameters.adaptive_p = true;
              }),
              HasSubstr("one excludes the other"));
  using law::Sampler;
  EXPECT_THAT(refused([](RowOptions* o) {
                o->parameters.order = {Sampler::kTopK, Sampler::kTopK};
              }),
              HasSubstr("order: top_k twice"));
  EXPECT_THAT(refused([](RowOptions* o) {
                o->parameters.top_k = 3;
                o->parameters.order = {Sampler::kTopP};
              }),
              HasSubstr("order lacks top_k"));
  EXPECT_THAT(refused([](RowOptions* o) {
                o->parameters.top_k = 3;
                o->parameters.mirostat = 2;
                o->parameters.order = {Sampler::kMirostat, Sampler::kTopK};
              }),
              HasSubstr("order: top_k after"));
}

TEST(Library, CpuSamplerIsTheLaw) {
  CpuSampler sampler;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const RandomRow row(seed, 500, seed % 2 == 0 ? kernels::RowOptions::kPlain : kernels::RowOptions::kChained);
    RowAnswer answer;
    ASSERT_TRUE(sampler.Sample(row.request(), &answer).ok());
    EXPECT_EQ(answer, law::SampleRowReference(row.request())) << row.description();
  }
  kernels::RowRequest request = RandomRow(1, 10).request();
  request.logits = nullptr;
  RowAnswer answer;
  EXPECT_EQ(sampler.Sample(request, &answer).code, StatusCode::kInvalidArgument);
}

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
  EXPECT_EQ(sampler->SetSamplerState(kRows, 1).code, StatusCode::kInvalidArgument);
  const kernels::TokenPatch twice[] = {{.token = 4}, {.token = 4}};
  EXPECT_THAT(sampler->SetPatches(0, twice).message, HasSubstr("patches[1]"));
  EXPECT_THAT(sampler->SetPatches(0, std::vector<kernels::TokenPatch>(3)).message, HasSubstr("at most 2"));

  for (uint32_t i = 0; i < kRows; ++i) ASSERT_TRUE(sampler->SetRow(i, RowParameters(), {}).ok());
  EXPECT_THAT(sampler->Upload(nullptr).message, HasSubstr("null stream"));
  driver_.SetCapturing(true);
  EXPECT_EQ(sampler->Upload(kStream).code, StatusCode::kFailedPrecondition);
  driver_.SetCapturing(false);
  EXPECT_EQ(sampler->Sample(kStream).code, StatusCode::kFailedPrecondition);
  ASSERT_TRUE(sampler->Upload(kStream).ok());
  EXPECT_THAT(sampler->Sample(nullptr).message, HasSubstr("null stream"));
  driver_.FailKernel(devices::cuda::Result::kLaunchFailed);
  ASSERT_TRUE(sampler->Sample(kStream).ok());
  std::vector<RowAnswer> answers(1);
  EXPECT_EQ(sampler->Download(kStream, answers).code, StatusCode::kUnavailable);
  driver_.FailKernel(devices::cuda::Result::kSuccess);
}

TEST(Library, WithoutADriverThereIsNoCudaSampler) {
  std::unique_ptr<CudaSampler> sampler;
  const Status status = CudaSampler::Create(1000, {}, &sampler);
  EXPECT_EQ(status.code, StatusCode::kNotFound) << status.message;
  EXPECT_EQ(sampler, nullptr);
}

}  // namespace
}  // namespace sortition
