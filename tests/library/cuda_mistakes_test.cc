// Errors of libsortition on callers' mistakes and drivers' failures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <type_traits>
#include <vector>

#include "tests/library/cuda_library.h"

namespace sortition::cuda_mistakes_test {
namespace {

using kernels::RowOutput;
using kernels::RowParameters;
using testing::FakeCudaDriver;
using ::testing::HasSubstr;

TEST_F(CudaLibrary, MistakesAreNamed) {
  MakeRows();
  const auto sampler = Create({.rows = kRows, .vocabulary = 3000, .edits = 2, .top = 5, .kept = 7});
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
      b->*field = reinterpret_cast<std::remove_reference_t<decltype(b->*field)>>(ToDevicePointer(b->tokens) + 1);
    };
  };
  EXPECT_THAT(refused(is_moved(&CudaBatch::tokens)), HasSubstr("batch.tokens is not a multiple of 4"));
  EXPECT_THAT(refused(is_moved(&CudaBatch::logprobs)), HasSubstr("batch.logprobs is not a multiple of 4"));
  EXPECT_THAT(refused(is_moved(&CudaBatch::positions)), HasSubstr("batch.positions is not a multiple of 4"));
  EXPECT_THAT(refused(is_moved(&CudaBatch::given)), HasSubstr("batch.given is not a multiple of 4"));
  EXPECT_THAT(refused(is_moved(&CudaBatch::accepted)), HasSubstr("batch.accepted is not a multiple of 4"));
  EXPECT_THAT(refused(is_moved(&CudaBatch::allowed_bits)), HasSubstr("batch.allowed_bits is not a multiple of 4"));
  EXPECT_THAT(refused([](CudaBatch* b) {
                b->outputs = reinterpret_cast<kernels::cuda::RawOutput*>(ToDevicePointer(b->tokens) + 4);
              }),
              HasSubstr("batch.outputs is not a multiple of 8"));
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
  const kernels::LogitEdit twice[] = {{.token = 4}, {.token = 4}};
  EXPECT_THAT(sampler->SetEdits(0, twice).message, HasSubstr("edits[1]"));
  EXPECT_THAT(sampler->SetEdits(0, std::vector<kernels::LogitEdit>(3)).message, HasSubstr("at most 2"));
  EXPECT_EQ(sampler->SetEdits(kRows, {}).code, StatusCode::kInvalidArgument);

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
  std::vector<RowOutput> answers(1);
  EXPECT_EQ(sampler->Download(kStream, answers).code, StatusCode::kUnavailable);
  driver_.FailKernel(devices::cuda::Result::kSuccess);
}

// The driver's check at its end finds leaks.
TEST_F(CudaLibrary, StartFailureIsTypedAndLeaksNothing) {
  const devices::cuda::Api api = driver_.api();
  const devices::cuda::Hardware hardware = devices::cuda::FindHardware(api)->at(0);
  const auto create = [&]() -> absl::Status {
    auto context = devices::cuda::Context::Create(api, hardware, FakeCudaDriver::Images());
    if (!context.ok()) return context.status();
    return CudaSampler::State::Create(*std::move(context), Limits()).status();
  };
  int failures = 0;
  for (const char* const function :
       {"DevicePrimaryCtxRetain", "ModuleLoadData", "ModuleGetFunction", "MemAlloc", "StreamCreate", "MemsetD8Async",
        "StreamSynchronize", "MemHostAlloc", "EventCreate"}) {
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

// A lost device is not reported as a mistake of the caller.
TEST_F(CudaLibrary, BindReportsLostDevice) {
  MakeRows();
  const auto sampler = Create(Limits());
  driver_.Fail("PointerGetAttribute", devices::cuda::Result::kIllegalAddress);
  EXPECT_EQ(sampler->Bind(batch_).code, StatusCode::kUnavailable);
  EXPECT_TRUE(sampler->Bind(batch_).ok());
}

TEST(Library, NoDriverMeansNoCudaSampler) {
  std::unique_ptr<CudaSampler> sampler;
  const Status status = CudaSampler::Create(1000, {}, &sampler);
  EXPECT_EQ(status.code, StatusCode::kNotFound) << status.message;
  EXPECT_EQ(sampler, nullptr);
}

}  // namespace
}  // namespace sortition::cuda_mistakes_test
