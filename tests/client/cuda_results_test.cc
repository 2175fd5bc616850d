// Steps for whose results a CUDA stream waits, and the order in which streams continue. Uses the tests' driver and a
// client in process whose steps end when the test releases them.
#include "client/cpp/cuda/cuda_results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "client/cpp/cuda/cuda_ready.h"
#include "sortition/in_process.h"
#include "tests/cuda/fake_driver.h"

namespace sortition::client::cuda_results_test {
namespace {

using devices::cuda::Result;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint32_t kVocabulary = 8;

CUstream_st* Stream(uintptr_t number) { return reinterpret_cast<CUstream_st*>(number); }

class CudaResultsTest : public ::testing::Test {
 protected:
  CudaResultsTest() {
    for (const char* id : {"first", "second"}) {
      SequenceOptions options;
      options.request_id = id;
      options.vocabulary_size = kVocabulary;
      auto opened = client_->Open(options);
      EXPECT_TRUE(opened.ok()) << opened.status();
      sequences_.push_back(*std::move(opened));
    }
  }

  Batch MakeBatch(size_t sequence) const {
    return {v1::DTYPE_F32, kVocabulary, {{sequences_[sequence].get(), logits_}}};
  }
  // Submits step number `step` of a sequence. It ends at Release, or at once if the sequence is in another step.
  absl::Status Step(int step, size_t sequence, std::function<void()> then = nullptr) {
    Batch batch = MakeBatch(sequence);
    batch.ready = ReadyWord{&word_, 1};
    return Submit(step, batch, std::move(then));
  }
  absl::Status RefusedStep(int step) {
    Batch batch = MakeBatch(1);
    batch.vocabulary_size = 0;
    return Submit(step, batch, nullptr);
  }
  void Release() { std::atomic_ref(word_).store(1, std::memory_order_release); }
  // Blocks until the client has delivered the results that it had before this call.
  void AwaitResultsSoFar() {
    const auto step_results = client_->Step(MakeBatch(0));
    ASSERT_TRUE(step_results.ok()) << step_results.status();
    EXPECT_EQ(std::get<RowError>(step_results->at(0)).reason, v1::STEP_IN_FLIGHT);
  }

  const float logits_[kVocabulary] = {0, 0, 0, 0, 0, 100, 0, 0};
  testing::FakeCudaDriver driver_;
  std::unique_ptr<CudaResults> answers_ =
      *CudaResults::CreateOn(driver_.api(), devices::cuda::FindHardware(driver_.api())->front(), 1);
  alignas(4) uint32_t word_ = 0;
  std::vector<int> ended_;  // numbers of steps, in the order of their callbacks
  std::vector<std::unique_ptr<Sequence>> sequences_;
  // Declared last, so that it is destroyed first.
  std::unique_ptr<Client> client_ = *Client::Connect({.in_process = InProcessEngine()});

 private:
  absl::Status Submit(int step, const Batch& batch, std::function<void()> then) {
    return answers_->StepAsync(client_.get(), batch, {}, Stream(uintptr_t(step)),
                               [this, step, then = std::move(then)](std::vector<RowResult>) {
                                 ended_.push_back(step);
                                 if (then) then();
                               });
  }
};

TEST_F(CudaResultsTest, LivesLeaveGraphsOfOthersValid) {
  EXPECT_TRUE(driver_.Capture(Stream(7), [&] {
    answers_.reset();
    const auto hardware = devices::cuda::FindHardware(driver_.api())->front();
    EXPECT_TRUE(CudaResults::CreateOn(driver_.api(), hardware, 1).ok());
    constexpr auto kAligned = std::align_val_t{CudaReady::kBytes};
    const std::shared_ptr<std::byte> page(new (kAligned) std::byte[CudaReady::kBytes]{},
                                          [](std::byte* at) { operator delete[](at, kAligned); });
    const auto ready = CudaReady::CreateOn(driver_.api(), hardware, page);
    ASSERT_TRUE(ready.ok()) << ready.status();
    EXPECT_TRUE((*ready)->Raise(nullptr).ok());
  }));
}

TEST_F(CudaResultsTest, RefusedStepReleasesNoStreamEarly) {
  absl::Notification over;
  ASSERT_EQ(Step(1, 0, [&] { over.Notify(); }), absl::OkStatus());
  EXPECT_TRUE(driver_.is_waiting(Stream(1)));
  EXPECT_TRUE(absl::IsInvalidArgument(RefusedStep(2)));
  EXPECT_TRUE(driver_.is_waiting(Stream(1)));
  Release();
  over.WaitForNotification();
  EXPECT_FALSE(driver_.is_waiting(Stream(1)));
  EXPECT_FALSE(driver_.is_waiting(Stream(2)));
  EXPECT_EQ(answers_->tokens()[0], 5);
  EXPECT_THAT(ended_, ElementsAre(1));
  // No step precedes this one, and the results stay.
  EXPECT_TRUE(absl::IsInvalidArgument(RefusedStep(3)));
  EXPECT_FALSE(driver_.is_waiting(Stream(3)));
  EXPECT_EQ(answers_->tokens()[0], 5);
}

TEST_F(CudaResultsTest, EarlyAnswerWaitsForStepBefore) {
  absl::Notification over;
  ASSERT_EQ(Step(1, 0), absl::OkStatus());
  ASSERT_EQ(Step(2, 0, [&] { over.Notify(); }), absl::OkStatus());  // its sequence has a step in flight
  AwaitResultsSoFar();
  EXPECT_TRUE(driver_.is_waiting(Stream(1)));
  EXPECT_TRUE(driver_.is_waiting(Stream(2)));
  EXPECT_THAT(ended_, IsEmpty());
  Release();
  over.WaitForNotification();
  EXPECT_FALSE(driver_.is_waiting(Stream(1)));
  EXPECT_FALSE(driver_.is_waiting(Stream(2)));
  EXPECT_THAT(ended_, ElementsAre(1, 2));
  EXPECT_EQ(answers_->tokens()[0], -1);
}

TEST_F(CudaResultsTest, LostDeviceBlocksNoCallback) {
  absl::Notification over;
  ASSERT_EQ(Step(1, 0), absl::OkStatus());
  ASSERT_EQ(Step(2, 0, [&] { over.Notify(); }), absl::OkStatus());
  EXPECT_TRUE(absl::IsInvalidArgument(RefusedStep(3)));
  AwaitResultsSoFar();
  driver_.FailKernel(Result::kIllegalAddress);
  Release();
  over.WaitForNotification();
  EXPECT_THAT(ended_, ElementsAre(1, 2));
  EXPECT_TRUE(absl::IsUnavailable(Step(4, 0)));
}

// The destructor waits for the device's work, also on a stream that waits for a refused step.
TEST_F(CudaResultsTest, CallbackMayStepAgainAndDestroy) {
  absl::Notification over;
  ASSERT_EQ(Step(1, 0,
                 [&] {
                   EXPECT_FALSE(driver_.is_waiting(Stream(2)));
                   EXPECT_TRUE(absl::IsInvalidArgument(RefusedStep(3)));
                   EXPECT_FALSE(driver_.is_waiting(Stream(3)));
                   EXPECT_EQ(Step(4, 1,
                                  [&] {
                                    answers_.reset();
                                    over.Notify();
                                  }),
                             absl::OkStatus());
                 }),
            absl::OkStatus());
  EXPECT_TRUE(absl::IsInvalidArgument(RefusedStep(2)));
  Release();
  over.WaitForNotification();
  EXPECT_THAT(ended_, ElementsAre(1, 4));
}

}  // namespace
}  // namespace sortition::client::cuda_results_test
