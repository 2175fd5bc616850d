// The CUDA device: memory, streams, chunks and errors, over a driver whose kernels run in the emulator.
#include "devices/cuda/cuda_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "devices/self_test/self_test.h"
#include "tests/cuda/device_batch.h"
#include "tests/cuda/fake_driver.h"

namespace sortition::devices::cuda_device_test {
namespace {

using cuda::Result;
using testing::FakeCudaDriver;
using ::testing::HasSubstr;
using testing::Rows;
using testing::RunBatch;
using testing::StartOn;

TEST(CudaDevice, AnswersBatches) {
  const FakeCudaDriver driver;
  const auto device = StartOn(driver);
  const Rows rows(24);
  const BatchOutput result = RunBatch(device.get(), rows.Batch());
  rows.ExpectRight(result);
  EXPECT_EQ(result.kernel_nanoseconds, 500'000u);
  EXPECT_EQ(device->description().kind, "cuda");
  EXPECT_EQ(device->description().hardware, "Fake GPU 0, GPU-00112233-4455-6677-8899-aabbccddeeff");
}

TEST(CudaDevice, AnswersWithoutMemoryPools) {
  const FakeCudaDriver driver({.has_memory_pools = false});
  const auto device = StartOn(driver);
  for (const uint64_t seed : {1, 2}) {
    const Rows rows(24, seed == 1 ? 300 : 2000, seed);
    rows.ExpectRight(RunBatch(device.get(), rows.Batch()));
  }
}

// Its memory grows, and is freed, while an engine captures a graph of the same context.
TEST(CudaDevice, LeavesGraphsOfOthersValid) {
  FakeCudaDriver driver;
  const auto captured = reinterpret_cast<cuda::StreamHandle>(uintptr_t{77});
  EXPECT_TRUE(driver.Capture(captured, [&] {
    const auto device = StartOn(driver);
    for (const uint32_t vocabulary : {300, 3000}) {
      const Rows rows(8, vocabulary, vocabulary);
      rows.ExpectRight(RunBatch(device.get(), rows.Batch()));
    }
  }));
}

TEST(CudaDevice, PassesSelfTest) {
  const FakeCudaDriver driver;
  const auto device = StartOn(driver);
  std::vector<law::GoldenRow> known = law::GoldenRows();
  const SelfTest self_test(std::move(known));
  const SelfTest::Verdict verdict = self_test.Run(device.get(), absl::Minutes(2));
  EXPECT_TRUE(verdict.status.ok()) << verdict.status;
  EXPECT_GT(verdict.rows, 20u);
}

TEST(CudaDevice, SeveralBatchesAtOnce) {
  const FakeCudaDriver driver;
  const auto device = StartOn(driver, {.batches_in_flight = 3});
  std::vector<Rows> rows;
  for (uint64_t seed = 0; seed < 12; ++seed) rows.emplace_back(3, 300, 100 * seed);
  std::vector<BatchOutput> results(rows.size());
  absl::BlockingCounter left(int(rows.size()));
  for (size_t i = 0; i < rows.size(); ++i) {
    device->Submit(rows[i].Batch(), [&, i](BatchOutput result) {
      results[i] = std::move(result);
      left.DecrementCount();
    });
  }
  left.Wait();
  for (size_t i = 0; i < rows.size(); ++i) rows[i].ExpectRight(results[i]);
}

TEST(CudaDevice, LargeBatchRunsInChunks) {
  const FakeCudaDriver driver;
  const auto device = StartOn(driver, {.batches_in_flight = 1, .max_batch_bytes = 30'000});
  const Rows rows(30);
  rows.ExpectRight(RunBatch(device.get(), rows.Batch()));
  EXPECT_GT(driver.launches(), 4u);
}

TEST(CudaDevice, LittleMemoryMakesChunksSmaller) {
  const FakeCudaDriver driver({.memory_bytes = 150'000});
  const auto device = StartOn(driver, {.batches_in_flight = 1});
  const Rows rows(30);
  rows.ExpectRight(RunBatch(device.get(), rows.Batch()));
}

TEST(CudaDevice, OversizedRowFailsBatch) {
  const FakeCudaDriver driver({.memory_bytes = 100'000});
  const auto device = StartOn(driver);
  const Rows large(1, 60'000);
  EXPECT_TRUE(absl::IsResourceExhausted(RunBatch(device.get(), large.Batch()).status));
  const Rows rows(2, 300);
  rows.ExpectRight(RunBatch(device.get(), rows.Batch()));
}

TEST(CudaDevice, TransientErrorFailsOneBatch) {
  FakeCudaDriver driver;
  const auto device = StartOn(driver);
  const Rows rows(4);
  for (const char* function : {"MemcpyHtoDAsync", "MemsetD8Async", "LaunchKernel", "EventRecord", "MemcpyDtoHAsync"}) {
    driver.Fail(function, Result(701));
    const BatchOutput result = RunBatch(device.get(), rows.Batch());
    EXPECT_EQ(result.status.code(), absl::StatusCode::kInternal) << function;
    EXPECT_THAT(std::string(result.status.message()), HasSubstr(function));
    EXPECT_TRUE(result.outputs.empty());
    rows.ExpectRight(RunBatch(device.get(), rows.Batch()));
  }
}

class CudaDeviceFault : public ::testing::TestWithParam<int> {};

TEST_P(CudaDeviceFault, StickyErrorLosesDevice) {
  FakeCudaDriver driver;
  std::atomic<int> lost = 0;
  const auto device = StartOn(driver, {.lost = [&](const absl::Status& why) {
                                EXPECT_TRUE(absl::IsUnavailable(why));
                                ++lost;
                              }});
  const Rows rows(4);
  driver.FailKernel(Result(GetParam()));
  EXPECT_TRUE(absl::IsUnavailable(RunBatch(device.get(), rows.Batch()).status));
  const uint64_t launches = driver.launches();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(absl::IsUnavailable(RunBatch(device.get(), rows.Batch()).status));
  EXPECT_EQ(driver.launches(), launches);
  EXPECT_EQ(lost, 1);
}

// The last is no error of CUDA's: the driver is asked whether it is one that stays.
INSTANTIATE_TEST_SUITE_P(Errors, CudaDeviceFault,
                         ::testing::Values(int(Result::kNvlinkUncorrectable), int(Result::kContained),
                                           int(Result::kIllegalAddress), int(Result::kTensorMemoryLeak),
                                           int(Result::kExternalDevice), 999));

TEST(CudaDevice, StartErrorsAreTyped) {
  FakeCudaDriver driver;
  const cuda::Api api = driver.api();
  const cuda::Hardware hardware = cuda::FindHardware(api)->at(0);
  CudaDeviceOptions options;
  options.images = {};
  EXPECT_THAT(std::string(CudaDevice::Start(api, hardware, options).status().message()), HasSubstr("without nvcc"));
  options.images = FakeCudaDriver::Images();
  for (const auto& [function, error, code] :
       {std::tuple{"ModuleLoadData", Result::kUnsupportedPtxVersion, absl::StatusCode::kFailedPrecondition},
        {"DevicePrimaryCtxRetain", Result::kOutOfMemory, absl::StatusCode::kResourceExhausted},
        {"StreamCreate", Result::kDeviceUnavailable, absl::StatusCode::kUnavailable},
        {"ModuleGetFunction", Result(500), absl::StatusCode::kInternal}}) {
    driver.Fail(function, error);
    EXPECT_EQ(CudaDevice::Start(api, hardware, options).status().code(), code) << function;
  }
}

TEST(CudaDriver, IsFoundAtRunTime) {
  EXPECT_TRUE(absl::IsNotFound(cuda::Api::Load("libcuda-of-no-machine.so.1").status()));
  const absl::Status old = cuda::Api::Load("libm.so.6").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(old));
  EXPECT_THAT(std::string(old.message()), HasSubstr("too old: it has no cuInit"));
}

TEST(CudaDriver, DevicesAreChosenByIndexUuidOrName) {
  const FakeCudaDriver driver({.devices = 3});
  const auto hardware = cuda::FindHardware(driver.api());
  ASSERT_TRUE(hardware.ok());
  const auto chosen = [&](const std::string& wanted) {
    std::vector<uint32_t> indexes;
    for (const cuda::Hardware& one : cuda::Matching(wanted, *hardware)) indexes.push_back(one.index);
    return indexes;
  };
  EXPECT_THAT(chosen(""), ::testing::ElementsAre(0, 1, 2));
  EXPECT_THAT(chosen("1"), ::testing::ElementsAre(1));
  EXPECT_THAT(chosen("GPU-02"), ::testing::ElementsAre(2));
  EXPECT_THAT(chosen("MIG-01122334-"), ::testing::ElementsAre(1));
  EXPECT_THAT(chosen("MIG-GPU-01"), ::testing::ElementsAre());

  EXPECT_THAT(chosen("00112233-"), ::testing::ElementsAre(0));
  EXPECT_THAT(chosen("fake gpu 2"), ::testing::ElementsAre(2));
  EXPECT_THAT(chosen("7"), ::testing::ElementsAre());
}

TEST(CudaDriver, OldHardwareIsRefusedByName) {
  const FakeCudaDriver driver({.devices = 2, .capability = 75});
  std::vector<cuda::UnusableDevice> unusable;
  EXPECT_TRUE(cuda::FindHardware(driver.api(), &unusable)->empty());
  ASSERT_EQ(unusable.size(), 2u);
  EXPECT_EQ(unusable[1].index, 1u);
  EXPECT_THAT(std::string(unusable[1].why.message()), HasSubstr("Fake GPU 1 has compute capability 7.5"));
  EXPECT_TRUE(absl::IsFailedPrecondition(cuda::FindHardware(driver.api(), 1).status()));
  EXPECT_TRUE(absl::IsNotFound(cuda::FindHardware(driver.api(), 2).status()));
}

TEST(CudaDriver, UndescribedDeviceLeavesTheOthers) {
  FakeCudaDriver driver({.devices = 8});
  driver.Fail("DeviceGetName", Result(999), 4);
  std::vector<cuda::UnusableDevice> unusable;
  const auto hardware = cuda::FindHardware(driver.api(), &unusable);
  ASSERT_TRUE(hardware.ok()) << hardware.status();
  ASSERT_EQ(hardware->size(), 7u);
  EXPECT_EQ((*hardware)[3].index, 4u);
  ASSERT_EQ(unusable.size(), 1u);
  EXPECT_EQ(unusable[0].index, 3u);
  EXPECT_THAT(std::string(unusable[0].why.message()), HasSubstr("(999): DeviceGetName"));
}

}  // namespace
}  // namespace sortition::devices::cuda_device_test
