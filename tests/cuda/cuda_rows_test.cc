// Memory for rows on a CUDA device, made by a worker and read by a device of a server.
#include "client/cpp/cuda/cuda_rows.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/cuda/device_batch.h"
#include "tests/cuda/fake_driver.h"
#include "tests/cuda/foreign_memory.h"

namespace sortition::client::cuda_rows_test {
namespace {

using devices::cuda::Result;
using testing::FakeCudaDriver;
using ::testing::HasSubstr;
using testing::OpenDescriptors;

constexpr uint64_t kUnit = 2 << 20;

absl::StatusOr<std::unique_ptr<CudaRows>> CreateOn(const FakeCudaDriver& driver, uint64_t bytes, size_t device = 0) {
  return CudaRows::CreateOn(driver.api(), devices::cuda::FindHardware(driver.api())->at(device), bytes);
}

TEST(CudaRows, MemoryCanBeImportedElsewhere) {
  const FakeCudaDriver driver({.devices = 2});
  const auto rows = CreateOn(driver, kUnit + 1, 1);
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ((*rows)->bytes(), 2 * kUnit);
  const devices::MemoryHandle handle = (*rows)->handle();
  EXPECT_EQ(handle.kind, devices::MemoryKind::kCuda);
  EXPECT_EQ(handle.bytes, 2 * kUnit);
  EXPECT_NE(fcntl(handle.descriptor, F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ((*rows)->identity(), devices::cuda::IdentityOf(devices::cuda::FindHardware(driver.api())->at(1)));
  EXPECT_EQ((*CreateOn(driver, 1))->bytes(), kUnit);
  EXPECT_EQ((*CreateOn(driver, kUnit))->bytes(), kUnit);
}

TEST(CudaRows, ServersDeviceSamplesThem) {
  const FakeCudaDriver driver;
  const auto device = testing::StartOn(driver, {.memory = 3});
  const testing::Rows random(6);
  std::shared_ptr<const devices::ImportedMemory> imported;
  {
    const auto rows = CreateOn(driver, kUnit);
    ASSERT_TRUE(rows.ok()) << rows.status();
    EXPECT_EQ((*rows)->identity(), device->description().identity);
    imported = *device->Import((*rows)->handle());
    for (size_t i = 0; i < random.rows.size(); ++i) {
      const std::vector<std::byte>& tensor = random.rows[i]->tensor();
      std::memcpy(static_cast<std::byte*>((*rows)->data()) + 8192 * i, tensor.data(), tensor.size());
    }
  }
  std::vector<devices::DeviceRow> batch = random.Batch();
  for (size_t i = 0; i < batch.size(); ++i) {
    batch[i].segments = {{imported->bytes().data() + 8192 * i, random.rows[i]->tensor().size()}};
    batch[i].memory = 3;
    batch[i].imported = imported.get();
    batch[i].may_change = true;
  }
  random.ExpectRight(testing::RunBatch(device.get(), std::move(batch)));
}

TEST(CudaRows, CanBeReadToHost) {
  FakeCudaDriver driver;
  const auto rows = CreateOn(driver, kUnit);
  ASSERT_TRUE(rows.ok()) << rows.status();
  for (uint64_t i = 0; i < kUnit; ++i) static_cast<unsigned char*>((*rows)->data())[i] = uint8_t(i * 7 + i / 256);
  std::vector<std::byte> read(1000);
  for (const uint64_t offset : {uint64_t{0}, uint64_t{77}, kUnit - 1000}) {
    ASSERT_TRUE((*rows)->Read(offset, read).ok());
    EXPECT_EQ(std::memcmp(read.data(), static_cast<std::byte*>((*rows)->data()) + offset, read.size()), 0);
  }
  for (const uint64_t offset : {kUnit - 999, kUnit + 1, ~uint64_t{0}}) {
    EXPECT_TRUE(absl::IsOutOfRange((*rows)->Read(offset, read))) << offset;
  }
  driver.Fail("MemcpyDtoH", Result::kIllegalAddress);
  EXPECT_TRUE(absl::IsUnavailable((*rows)->Read(0, read)));
}

TEST(CudaRows, StreamIsAwaited) {
  FakeCudaDriver driver;
  const auto rows = CreateOn(driver, kUnit);
  ASSERT_TRUE(rows.ok()) << rows.status();
  auto* const stream = reinterpret_cast<CUstream_st*>(77);
  std::vector<CUstream_st*> waited;
  driver.SetWork([&](CUstream_st* done) { waited.push_back(done); });
  EXPECT_TRUE((*rows)->WaitFor(stream).ok());
  EXPECT_TRUE((*rows)->WaitFor(nullptr).ok());
  EXPECT_THAT(waited, ::testing::ElementsAre(stream, nullptr));
  driver.SetCapturing(true);
  EXPECT_TRUE(absl::IsFailedPrecondition((*rows)->WaitFor(stream)));
  EXPECT_EQ(waited.size(), 2u);
  driver.SetCapturing(false);
  driver.FailKernel(Result::kIllegalAddress);
  EXPECT_TRUE(absl::IsUnavailable((*rows)->WaitFor(stream)));
}

TEST(CudaRows, MemoryOutlivesQueuedWork) {
  // The second time there is no memory left with which to wait.
  for (const bool is_full : {false, true}) {
    FakeCudaDriver driver;
    driver.Defer();
    auto rows = CreateOn(driver, kUnit);
    ASSERT_TRUE(rows.ok()) << rows.status();
    bool is_done = false;
    driver.Enqueue(reinterpret_cast<CUstream_st*>(uintptr_t{7}), [&] { is_done = true; });
    if (is_full) driver.Fail("MemAlloc", Result::kOutOfMemory);
    rows->reset();
    EXPECT_TRUE(is_done) << is_full;
  }
}

TEST(CudaRows, LeaveGraphsOfOthersValid) {
  FakeCudaDriver driver;
  EXPECT_TRUE(
      driver.Capture(reinterpret_cast<CUstream_st*>(uintptr_t{7}), [&] { EXPECT_TRUE(CreateOn(driver, kUnit).ok()); }));
}

TEST(CudaRows, InvalidSizesAreRefused) {
  const FakeCudaDriver driver({.memory_bytes = 16 << 20});
  const auto most = CreateOn(driver, 12 << 20);
  EXPECT_TRUE(most.ok());
  EXPECT_TRUE(absl::IsResourceExhausted(CreateOn(driver, 6 << 20).status()));
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{17} << 20, ~uint64_t{0}}) {
    const absl::Status status = CreateOn(driver, bytes).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << bytes;
    EXPECT_THAT(std::string(status.message()), HasSubstr("bytes"));
  }
}

TEST(CudaRows, DeviceWithoutSharingIsAnError) {
  const FakeCudaDriver driver({.shares_memory = false});
  EXPECT_TRUE(absl::IsUnimplemented(CreateOn(driver, kUnit).status()));
}

TEST(CudaRows, EachFailureIsTypedAndLeaksNothing) {
  FakeCudaDriver driver;
  const int before = OpenDescriptors();
  for (const char* function : {"DevicePrimaryCtxRetain", "MemGetAllocationGranularity", "MemCreate",
                               "MemAddressReserve", "MemMap", "MemSetAccess", "MemExportToShareableHandle"}) {
    for (const auto& [error, code] : {std::pair{Result(999), absl::StatusCode::kInternal},
                                      {Result::kOutOfMemory, absl::StatusCode::kResourceExhausted},
                                      {Result::kDeviceUnavailable, absl::StatusCode::kUnavailable}}) {
      driver.Fail(function, error);
      EXPECT_EQ(CreateOn(driver, kUnit).status().code(), code) << function << " " << int(error);
      EXPECT_EQ(OpenDescriptors(), before) << function;
    }
  }
  EXPECT_TRUE(CreateOn(driver, kUnit).ok());
  EXPECT_EQ(OpenDescriptors(), before);
}

}  // namespace
}  // namespace sortition::client::cuda_rows_test
