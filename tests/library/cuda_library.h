// A CudaSampler over a driver whose kernels run in the emulator, and a batch for it.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <utility>
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

inline CUstream_st* const kStream = reinterpret_cast<CUstream_st*>(uintptr_t{77});

// A sampler, and a batch of random rows of one type in the device's memory.
class CudaLibrary : public ::testing::Test {
 protected:
  static constexpr uint32_t kRows = 9;
  static constexpr uint32_t kVocabulary = 3000;

  std::unique_ptr<CudaSampler> Create(const CudaLimits& limits) {
    const devices::cuda::Api api = driver_.api();
    const devices::cuda::Hardware hardware = devices::cuda::FindHardware(api)->at(0);
    auto context = devices::cuda::Context::Create(api, hardware, testing::FakeCudaDriver::Images());
    if (!context.ok()) ADD_FAILURE() << context.status();
    auto state = CudaSampler::State::Create(*std::move(context), limits);
    if (!state.ok()) ADD_FAILURE() << state.status();
    return std::make_unique<CudaSampler>(*std::move(state));
  }

  CudaLimits Limits() const {
    return {.rows = 10, .vocabulary = 4000, .edits = 2000, .top = kernels::kMaxTopLogprobs, .kept = 4000};
  }

  // Makes rows like RandomRow, every second one with a chain, but of one type and size, without lists of allowed
  // tokens.
  void MakeRows() {
    for (uint64_t seed = 1; rows_.size() < kRows; ++seed) {
      auto row = std::make_unique<kernels::RandomRow>(
          seed, kVocabulary, rows_.size() % 2 == 0 ? kernels::OptionsKind::kPlain : kernels::OptionsKind::kChained);
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
      ASSERT_TRUE(sampler->SetEdits(i, request.edits).ok());
    }
  }

  // Expects the right outputs of the rows, with the states from before the last Sample.
  void ExpectRight(CudaSampler* sampler, std::vector<kernels::RowRequest> requests) {
    std::vector<kernels::RowOutput> answers(kRows);
    ASSERT_TRUE(sampler->Download(kStream, answers).ok());
    for (uint32_t i = 0; i < kRows; ++i) {
      requests[i].sampler_state = states_[i];
      const kernels::RowOutput expected = law::SampleRowReference(requests[i]);
      EXPECT_EQ(answers[i], expected) << rows_[i]->description();
      const bool failed = expected.error != kernels::RowFault::kNone;
      if (!failed) states_[i] = expected.sampler_state;
      EXPECT_EQ(batch_.tokens[i], failed ? -1 : int32_t(expected.token));
      const kernels::RowParameters& p = *requests[i].parameters;
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

  testing::FakeCudaDriver driver_;
  std::vector<std::unique_ptr<kernels::RandomRow>> rows_;
  kernels::RowParameters parameters_[kRows];
  uint64_t states_[kRows] = {};
  CudaBatch batch_;
  std::byte* logits_ = nullptr;
};

}  // namespace sortition
