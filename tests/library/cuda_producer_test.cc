// Compact rows of logits in a GPU's memory: the bits that the processor states, over a driver whose kernels run in the
// emulator.
#include "client/sortition/cuda_producer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/cpu/compact/state_row.h"
#include "tests/library/cuda_library.h"

namespace sortition::cuda_producer_test {
namespace {

using kernels::StatedRow;
using ::testing::HasSubstr;

class CudaProducerTest : public CudaLibrary {
 protected:
  CudaProducerTest() {
    MakeRows();
    logits = {.logits = batch_.logits,
              .row_bytes = batch_.row_bytes,
              .dtype = batch_.dtype,
              .rows = kRows,
              .vocabulary = kVocabulary};
  }

  std::unique_ptr<CudaProducer> Produce(const CudaProducerLimits& limits) {
    const devices::cuda::Api api = driver_.api();
    const devices::cuda::Hardware hardware = devices::cuda::FindHardware(api)->at(0);
    auto context = devices::cuda::Context::Create(api, hardware, testing::FakeCudaDriver::Images());
    if (!context.ok()) ADD_FAILURE() << context.status();
    auto memory = CudaProducer::Memory::Create(*std::move(context), limits);
    if (!memory.ok()) ADD_FAILURE() << memory.status();
    return std::make_unique<CudaProducer>(*std::move(memory));
  }

  // States all rows on both and expects the same.
  void ExpectRight(CudaProducer* producer, uint32_t count, bool sums) {
    const Status status = producer->State(kStream, logits, parameters_, sums);
    ASSERT_TRUE(status.ok()) << status.message;
    for (uint32_t i = 0; i < kRows; ++i) {
      kernels::RowRequest request;
      request.logits = logits_ + batch_.row_bytes * i;
      request.dtype = logits.dtype;
      request.live_vocabulary = logits.vocabulary;
      request.parameters = &parameters_[i];
      StatedRow expected, stated;
      const bool is_stated =
          kernels::cpu::StateRow(request, {.count = count, .unit_sum = sums, .sum = sums}, &scratch, &expected);
      bool fails = false;
      ASSERT_TRUE(producer->Take(i, &stated, &fails).ok());
      ASSERT_EQ(fails, !is_stated) << i;
      failed += fails;
      whole += stated.is_whole;
      EXPECT_TRUE(fails || stated == expected) << i << " " << rows_[i]->description();
    }
  }

  kernels::cpu::Scratch scratch;
  CudaLogits logits;
  int failed = 0;
  int whole = 0;
};

TEST_F(CudaProducerTest, StatesWhatTheProcessorStates) {
  for (const uint32_t count : {1u, 64u, 256u, 999u}) {
    const auto producer = Produce({.rows = kRows, .vocabulary = 4000, .first = count});
    for (const bool sums : {false, true}) ExpectRight(producer.get(), count, sums);
  }
  EXPECT_GE(failed, 8) << "a row or more in each of the 8 statements";
}

// Few live tokens, none, NaN that fails or masks, other types.
TEST_F(CudaProducerTest, UnusualRowsAreStated) {
  const uint16_t masked = 0xff80, nan = 0x7fc0;
  for (uint32_t id = 0; id < kVocabulary; ++id) {
    std::memcpy(logits_ + 2 * id, &masked, 2);
    if (id > 40) std::memcpy(logits_ + batch_.row_bytes + 2 * id, &masked, 2);
  }
  for (const uint32_t row : {2u, 3u}) std::memcpy(logits_ + batch_.row_bytes * row + 34, &nan, 2);
  parameters_[2].mask_nan = false;
  parameters_[3].mask_nan = true;
  const auto producer = Produce({.rows = kRows, .vocabulary = 4000, .first = 100});
  for (const bool sums : {false, true}) ExpectRight(producer.get(), 100, sums);
  EXPECT_GE(failed, 2) << "the one with a NaN, in each of 2 statements";
  EXPECT_GE(whole, 4);
  logits.dtype = kernels::DType::kF16;
  for (const bool sums : {false, true}) ExpectRight(producer.get(), 100, sums);
  logits.dtype = kernels::DType::kF32;
  logits.vocabulary = kVocabulary / 2;
  for (const bool sums : {false, true}) ExpectRight(producer.get(), 100, sums);
}

// The first tokens leave the GPU, not the rows.
TEST_F(CudaProducerTest, FirstTokensAloneLeaveTheDevice) {
  const auto producer = Produce({.rows = kRows, .vocabulary = 4000, .first = 64});
  const uint64_t before = driver_.downloaded_bytes();
  ASSERT_TRUE(producer->State(kStream, logits, parameters_, true).ok());
  EXPECT_EQ(driver_.downloaded_bytes() - before,
            kRows * (sizeof(kernels::cuda::RawOutput) + 65 * sizeof(kernels::cuda::TopToken)));
}

TEST_F(CudaProducerTest, MistakesAreRefusedByName) {
  const auto producer = Produce({.rows = kRows, .vocabulary = 4000, .first = 64});
  const auto said = [&](const CudaLogits& wrong, std::span<const kernels::RowParameters> parameters) {
    return producer->State(kStream, wrong, parameters, false).message;
  };
  EXPECT_THAT(said(logits, std::span(parameters_).first(2)), HasSubstr("2 parameters for 9 rows"));
  CudaLogits wrong = logits;
  wrong.vocabulary = 4001;
  EXPECT_THAT(said(wrong, parameters_), HasSubstr("batch.vocabulary"));
  wrong = logits;
  wrong.logits = parameters_;
  EXPECT_THAT(said(wrong, parameters_), HasSubstr("batch.logits"));
  StatedRow stated;
  bool fails = false;
  EXPECT_EQ(producer->Take(0, &stated, &fails).code, StatusCode::kInvalidArgument) << "nothing is stated";
  EXPECT_FALSE(CudaProducer::Memory::Create(nullptr, {.first = 1000}).ok());
}

}  // namespace
}  // namespace sortition::cuda_producer_test
